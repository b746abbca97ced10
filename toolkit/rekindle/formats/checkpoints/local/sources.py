"""The programs with models for `open`, by the prefix of a name."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.local.listing import Listing
from rekindle.formats.checkpoints.local.model import StoredModel

PREFIXES: Final = ("ollama", "lmstudio", "huggingface")
"""The prefixes of names, by program."""


def sources() -> Mapping[str, tuple[Callable[[Listing], Iterable[StoredModel]], Callable[[str], Path]]]:
    """Return the models and the lookup of each program, by the prefix of names."""
    from rekindle.formats.checkpoints.local.hub_cache import cached_models, find_in_cache
    from rekindle.formats.checkpoints.local.lmstudio import find_in_lmstudio, lmstudio_models
    from rekindle.formats.checkpoints.local.ollama import find_in_ollama, ollama_models

    each = (ollama_models, find_in_ollama), (lmstudio_models, find_in_lmstudio), (cached_models, find_in_cache)
    return dict(zip(PREFIXES, each, strict=True))


def has_prefix(name: str) -> bool:
    """Return True if a name begins with the prefix of a program."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix.lower() in PREFIXES


def find_local(name: str) -> Path:
    """Return the GGUF file or the directory of a model by a name with a prefix.

    Raises:
        ModelError: the program does not have the model, or not in a readable form.
    """
    prefix, _, rest = name.partition(":")
    _, find = sources()[prefix.lower()]
    return find(rest)


def hint_for_local(name: str) -> str:
    """Return a hint for a name without the prefix of the program that has the model; "" for others."""
    for prefix, (_, find) in sources().items():
        with suppress(Exception):  # the program has no such model, or cannot be read
            find(name)
            return f"Did you mean '{prefix}:{name}'?"
    return ""


def local_tower(name: str) -> Path | None:
    """Return the file with the vision tower of a model by a name with a prefix; None if it is found by its name."""
    prefix, _, rest = name.partition(":")
    if prefix.lower() != "ollama":
        return None
    from rekindle.formats.checkpoints.local.ollama import projector_in_ollama

    return projector_in_ollama(rest)
