"""The files of llama.cpp's server tests: the ones to run here, and the others with the reason."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = "tools/server/tests/unit"
STARTS: Final = ("ServerPreset.", "ServerProcess(")
"""Calls with a server."""
RUN: Final[Sequence[str]] = tuple(
    f"test_{name}.py"
    for name in (
        *("basic", "chat_completion", "compat_anthropic", "compat_oai_responses", "completion", "embedding"),
        *("ignore_eos", "lora", "metrics", "rerank", "sleep", "stream", "systemone", "template", "tokenize"),
        "tool_call",
    )
)
"""The files to run, below `ROOT`."""
PICTURES: Final[Sequence[str]] = ("test_vision_api.py",)
"""Files to run on a server whose model sees."""
KEYS: Final[Sequence[str]] = ("test_security.py",)
"""Files to run on a server with the key of the file."""
NOT_CLAIMED: Final = "the route or the field is not claimed: "
LEFT_OUT: Final[Mapping[str, Sequence[str]]] = {
    NOT_CLAIMED + "slots, their files, a context that shifts": tuple(
        f"test_{name}.py" for name in ("ctx_shift", "kv_keep_only_active", "slot_save", "slots")
    ),
    NOT_CLAIMED + "text between two others": ("test_infill.py",),
    NOT_CLAIMED + "Vertex AI's predictions": ("test_compat_gcp.py",),
    NOT_CLAIMED + "tools that the server runs, a proxy for a page's requests": tuple(
        f"test_{name}.py" for name in ("mcp_servers", "proxy", "tools_builtin")
    ),
    NOT_CLAIMED + "models that the server downloads and runs in processes of its own": ("test_router.py",),
    "it compares drafts under options of its own server's start": ("test_speculative.py",),
}
"""The other files, below `ROOT`, by the reason."""


def unlisted(checkout: Path) -> Iterator[str]:
    """Yield the files of a checkout with a server and without an entry."""
    entries = {*RUN, *PICTURES, *KEYS, *(name for names in LEFT_OUT.values() for name in names)}
    for path in sorted((checkout / ROOT).glob("test_*.py")):
        if path.name not in entries and any(start in path.read_text(encoding="utf-8") for start in STARTS):
            yield path.name
