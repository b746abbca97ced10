"""Settings of an engine with two steps, and so with six programs."""

from rekindle.settings.engine import SettingsOptions

SETTINGS: SettingsOptions = {
    "precompile": "all",
    "max_running": 2,
    "decode_buckets": (2,),
    "max_prefill_tokens": 16,
    "prefill_chunk": 16,
    "page_size": 16,
    "max_context": 64,
    "max_logprobs": 2,
}
OPTIONS = "--max-running 2 --decode-buckets 2 --max-prefill-tokens 16 --page-size 16 --max-context 64 --max-logprobs 2"
"""The same settings on the command line."""
