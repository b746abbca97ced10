"""Hints for names without a model."""

import difflib
import re
from typing import Final

from rekindle.formats.checkpoints.embedded import NAME

_ADDRESS: Final = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<path>[^?#]+)(?:[?#].*)?", re.IGNORECASE
)
_BRANCH: Final = re.compile(r"/(?:tree|blob|resolve)/(?P<revision>[^/]+)")
_OF_OLLAMA: Final = re.compile(r"[a-z][a-z0-9.-]*(?::[\w.-]+|\d(?:\.\d)?)")
"""Names such as `qwen3:4b` and `llama3.2`."""
_SHORT: Final = ("smollm", "smollm2", "smollm2-135m", "smollm2:135m", NAME)
"""The name of the embedded model, and likely spellings."""


def hint_for(name: str) -> str:
    """Return a hint for a name of no model, as a sentence; "" without a hint."""
    if (address := _ADDRESS.fullmatch(name)) is not None:
        return f"Did you mean {_hub_id(address['path'])!r}, the hub id of this address?"
    if difflib.get_close_matches(name.lower(), _SHORT, n=1, cutoff=0.75):
        return f"Did you mean {NAME!r}?"
    if _OF_OLLAMA.fullmatch(name):
        return f"A model of Ollama has a prefix, as in 'ollama:{name}'; `rekindle models` lists hub ids."
    if re.fullmatch(r"[\w.-]+", name):
        return f"A hub id has an owner, as in 'owner/{name}'; `rekindle models` lists hub ids."
    return ""


def _hub_id(path: str) -> str:
    """Return the hub id of a page by the path in its address, with the file and the revision of the page."""
    parts = _BRANCH.sub("", path).strip("/").split("/")
    branch = _BRANCH.search(path)
    revision = "" if branch is None or branch["revision"] == "main" else f"@{branch['revision']}"
    return "/".join(parts if parts[-1].endswith(".gguf") else parts[:2]) + revision
