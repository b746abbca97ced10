"""Settings that tests share, so that the same programs serve them all and are compiled once in a run."""

from collections.abc import Sequence
from typing import TypedDict

from rekindle.settings.engine import SettingsOptions


class Shapes(TypedDict):
    """The keywords of `open` that shape the programs."""

    page_size: int
    num_pages: int
    max_context: int
    max_running: int
    max_prefill_tokens: int
    prefill_buckets: Sequence[int]
    decode_buckets: Sequence[int]


SMALL: Shapes = {
    "page_size": 16,
    "num_pages": 29,
    "max_context": 256,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "prefill_buckets": (64,),
    "decode_buckets": (4,),
}
"""Settings for the tiny models, with one prefill and one decode bucket, and a pool of 28 pages."""
SMOLLM2: Shapes = {
    "page_size": 16,
    "num_pages": 45,
    "max_context": 320,
    "max_running": 8,
    "max_prefill_tokens": 128,
    "prefill_buckets": (128,),
    "decode_buckets": (8,),
}
"""Settings for the default model, with one prefill and one decode bucket, and room for all of its goldens at once."""
FEW_PAGES: SettingsOptions = {
    "page_size": 16,
    "num_pages": 8,
    "max_context": 64,
    "max_running": 4,
    "max_prefill_tokens": 16,
    "prefill_chunk": 16,
    "prefill_buckets": (16,),
    "decode_buckets": (4,),
    "decode_steps": 1,
    "precompile": "lazy",
}
"""Settings with chunks of 16 tokens and 7 pages; four requests of 44 tokens need 11.

With several steps in a tick, requests would end together, and none would be preempted.
"""
