"""The guide of limits denies no feature of the product."""

import re
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Final

import pytest

import rekindle
from rekindle.server.common import answer
from rekindle.server.routing import ANTHROPIC_ANSWERS
from rekindle.session import serving
from rekindle.settings.engine import Settings
from rekindle.settings.server import ServerSettings

GUIDE: Final = Path(__file__).parents[3] / "tutorials" / "guides" / "limits.md"


def settings() -> set[str]:
    return {field.name for kind in (Settings, ServerSettings) for field in fields(kind)}


FEATURES: Final[list[tuple[str, Callable[[], bool], str]]] = [
    ("several models", lambda: serving.KEEP_ALIVE_SECONDS > 0, r"(has|serves) one model"),
    ("TLS", lambda: "ssl_certfile" in settings(), r"no TLS|not? HTTPS"),
    ("kept responses", lambda: "keep_responses" in settings(), r"not (stored|kept)|`previous_response_id` is refused"),
    ("pieces of calls", lambda: hasattr(answer, "CallPiece"), r"streamed tool call arrives in one"),
    ("Anthropic's API", lambda: "/v1/messages" in ANTHROPIC_ANSWERS, r"no Anthropic|Anthropic's API is not"),
    ("pages in int8", lambda: "kv_dtype" in settings(), r"no quantized (pages|cache)"),
    ("adapters", lambda: "max_adapters" in settings(), r"no (LoRA|adapters)"),
    ("several hosts", lambda: "hosts" in signature(rekindle.open).parameters, r"one process (only|alone)"),
    ("priority", lambda: "priority" in {field.name for field in fields(rekindle.SamplingParams)}, r"no priorit"),
]
"""Features, each with its place in the product and the words of its denial."""


@pytest.mark.parametrize(("has", "denial"), [each[1:] for each in FEATURES], ids=[each[0] for each in FEATURES])
def test_what_the_product_has_is_no_limit(has: Callable[[], bool], denial: str) -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    assert has(), "the product lost the feature, so its row here is out of date"
    assert re.search(denial, text, re.IGNORECASE) is None
