"""Names of a model's tensors in files: text models inside of other models, and wrappers left over from training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from rekindle.core.models.config import Names

TEXT_PREFIXES: Final = (
    "model.language_model.",
    "language_model.model.",
    "model.language_model.model.",
    "language_model.model.model.",
    "model.text_model.",
    "text_model.model.",
    "language.model.",
    "llm.model.",
    "model.llm.",
    "thinker.model.",
    "language_model.",
    "text_model.",
    "language.",
    "llm.",
    "",
)
"""Prefixes of a text model's tensors in files, in place of its own prefix (mostly "model."), in order of preference."""
_BASE: Final = frozenset({"", "language_model.", "text_model.", "language.", "llm."})
"""Prefixes of models without a head: an embedding model, or the text model alone."""
_LEADING: Final = ("base_model.model.", "module.", "_orig_mod.")
"""Prefixes of all names, from PEFT, from data parallelism, and from torch.compile."""
_ANYWHERE: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Parts inside of names, from wrappers of single modules."""
_OF_NORMS: Final[Mapping[str, str]] = {"gamma": "weight", "beta": "bias"}
"""Names of the tensors of norms in files from TensorFlow, such as those of BERT."""


@dataclass(frozen=True, slots=True)
class StoredNames:
    """Stored names of a checkpoint's tensors.

    Attributes:
        by_name: the stored name of each tensor, by its name in the model. Tensors outside of the text model keep their
            names, without the prefixes of training.
        is_base: whether the names are those of a model without a head.
    """

    by_name: dict[str, str]
    is_base: bool


def stored_names(stored: Iterable[str], names: Names) -> StoredNames:
    """Return the stored names by the model's names.

    The final norm shows the text model's prefix in the file, because no format quantizes it. Without a norm or its
    weights, the first layer does.

    Args:
        stored: all names in the files.
        names: the model's names.
    """
    cleaned = {_without_training(name): name for name in stored}
    own = _own_prefix(names)
    prefixes = (own, *TEXT_PREFIXES)
    by_norm = (prefix for prefix in prefixes if _has_norm(cleaned, prefix, own, names))
    by_layer = (prefix for prefix in prefixes if _has_layer(cleaned, prefix, own, names))
    prefix = next(chain(by_norm, by_layer), own)
    text = {
        own + name.removeprefix(prefix): place
        for name, place in cleaned.items()
        if prefix != own and name.startswith(prefix) and not name.startswith(names.head + ".")
    }
    heads = dict(_heads(cleaned, prefix, names.head))
    return StoredNames({**cleaned, **text, **heads}, prefix != own and prefix in _BASE)


def _without_training(name: str) -> str:
    while prefix := next((each for each in _LEADING if name.startswith(each)), ""):
        name = name.removeprefix(prefix)
    for part in _ANYWHERE:
        name = name.replace(f".{part}", ".")
    stem, _, last = name.rpartition(".")
    return f"{stem}.{_OF_NORMS[last]}" if last in _OF_NORMS and stem.endswith("LayerNorm") else name


def _own_prefix(names: Names) -> str:
    """Return the common prefix of all of the model's names except the head's: "model." in most families."""
    first, dot, _ = names.layers.partition(".")
    prefix = first + dot if dot else ""
    return prefix if all(name.startswith(prefix) for name in (names.embedding, names.norm or prefix)) else ""


def _has_norm(cleaned: dict[str, str], prefix: str, own: str, names: Names) -> bool:
    return names.norm is not None and f"{prefix}{names.norm.removeprefix(own)}.weight" in cleaned


def _has_layer(cleaned: dict[str, str], prefix: str, own: str, names: Names) -> bool:
    first = f"{prefix}{names.layers.removeprefix(own)}.0."
    return any(name.startswith(first) for name in cleaned)


def _heads(cleaned: dict[str, str], prefix: str, head: str) -> Iterator[tuple[str, str]]:
    """Yield the name and stored name of a head's tensors that lie inside of the models around the text model."""
    parts = prefix.split(".")[:-1]
    for length in range(1, len(parts) + 1):
        around = ".".join(parts[:length]) + "."
        for name, place in cleaned.items():
            if name.startswith(f"{around}{head}."):
                yield name.removeprefix(around), place
