"""Hints for names without a model."""

import difflib
import re
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.embedded import NAME

WEIGHT_SUFFIXES: Final = (".bin", ".ckpt", ".ggml", ".gguf", ".onnx", ".pt", ".pth", ".safetensors")
"""Endings of the names of files with weights, of any library."""
_HUB: Final = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/+|(?:hf|huggingface|hub):/*|(?:hf|huggingface)/+)"
    r"(?P<path>[^?#]*)(?:[?#].*)?",
    re.IGNORECASE,
)
"""Addresses of the hub, and prefixes such as `hf:`."""
_BRANCH: Final = re.compile(r"/(?:tree|blob|resolve)/(?P<revision>[^/]+)")
_TAGGED: Final = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+):(?P<tag>[\w.-]+)")
"""A model of the hub with a quantization, as llama.cpp, Ollama and LM Studio write it, or a user's model of Ollama."""
_QUANTIZATION: Final = re.compile(r"(?:UD-)?(?:I?Q\d|T?Q\d|BF16|F16|F32|FP16|FP32|MXFP4|NVFP4)\w*", re.IGNORECASE)
_WITH_OLLAMA: Final = re.compile(r"ollama/+(?P<name>[\w./:-]+)", re.IGNORECASE)
_OF_OLLAMA: Final = re.compile(r"[a-z][a-z0-9.-]*(?::[\w.-]+|\d(?:\.\d)?)")
"""Names such as `qwen3:4b` and `llama3.2`."""
_NAMES: Final = dict.fromkeys(("smollm", "smollm2", "smollm2-135m", "smollm2:135m", NAME), NAME) | {"auto": "auto"}
"""Names of models for `open`, by likely spellings."""


def hint_for(name: str) -> str:
    """Return a hint for a name of no model, as sentences; "" without a hint."""
    if (address := _HUB.fullmatch(name)) is not None:
        hub_id = _hub_id(address["path"])
        if (tagged := _TAGGED.fullmatch(hub_id)) is not None:
            return _of_a_file(tagged)
        if "/" not in hub_id:
            return "A hub id has an owner and a name, as in 'Qwen/Qwen3-4B'; `rekindle models` lists hub ids."
        return f"Did you mean {hub_id!r}, the hub id of this address?"
    if close := difflib.get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.75):
        return f"Did you mean {_NAMES[close[0]]!r}?"
    if (with_ollama := _WITH_OLLAMA.fullmatch(name)) is not None:
        return f"Did you mean 'ollama:{with_ollama['name']}'?"
    if (tagged := _TAGGED.fullmatch(name)) is not None:
        if _QUANTIZATION.fullmatch(tagged["tag"]) or "gguf" in name.lower():
            return _of_a_file(tagged)
        return f"A model of Ollama has a prefix, as in 'ollama:{name}'; `rekindle models` lists hub ids."
    if name and is_path(name):
        return _of_a_path(Path(name).expanduser())
    if _OF_OLLAMA.fullmatch(name):
        return f"A model of Ollama has a prefix, as in 'ollama:{name}'; `rekindle models` lists hub ids."
    if re.fullmatch(r"[\w.-]+", name):
        return f"A hub id has an owner, as in 'owner/{name}'; `rekindle models` lists hub ids."
    return ""


def is_path(name: str) -> bool:
    """Return True for a name with the ending, the beginning or the separators of a path."""
    return name.lower().endswith(WEIGHT_SUFFIXES) or name.startswith((".", "~", "/")) or "\\" in name


def _hub_id(path: str) -> str:
    """Return the hub id of a page by the path in its address, with the file and the revision of the page."""
    parts = _BRANCH.sub("", path).strip("/").split("/")
    branch = _BRANCH.search(path)
    revision = "" if branch is None or branch["revision"] == "main" else f"@{branch['revision']}"
    return "/".join(parts if parts[-1].endswith(".gguf") else parts[:2]) + revision


def _of_a_file(tagged: re.Match[str]) -> str:
    """Return the hint for a hub id with a quantization: the file's name, as most repositories have it."""
    hub_id, stem = f"{tagged['owner']}/{tagged['name']}", re.sub(r"[-_.]gguf$", "", tagged["name"], flags=re.IGNORECASE)
    tag = tagged["tag"] if _QUANTIZATION.fullmatch(tagged["tag"]) else "Q4_K_M"
    return f"A GGUF file of the hub has its name behind the hub id, probably '{hub_id}/{stem}-{tag}.gguf' here."


def _of_a_path(path: Path) -> str:
    """Return the hint for a path of nothing: the first folder that is missing, or a file with a close name."""
    missing = path.absolute()
    while not missing.parent.exists():
        missing = missing.parent
    if missing != path.absolute():
        return f"There is no such file or directory: {missing.parent} has no {missing.name!r}."
    try:
        names = [each.name for each in missing.parent.iterdir()] if missing.parent.is_dir() else []
    except OSError:
        names = []
    close = difflib.get_close_matches(missing.name, names, n=1)
    hint = f" Did you mean {str(path.parent / close[0])!r}?" if close else ""
    return f"There is no such file or directory: {missing.parent} has no {missing.name!r}.{hint}"
