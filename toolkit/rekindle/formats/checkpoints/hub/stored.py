"""The sizes of weights on the hub, and their admission before a download."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rekindle.formats.checkpoints.hub.names import HubModel


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights of a model on the hub, as far as the hub tells before their download.

    Attributes:
        model: the model.
        size: the bytes of its files with weights; None if unknown.
        numbers: the count of numbers by data type, as in {"BF16": 135}; empty for GGUF files, or if unknown.
    """

    model: HubModel
    size: int | None
    numbers: Mapping[str, int]


Admission: TypeAlias = Callable[[StoredWeights], None]
"""Called before the download of weights; it raises an error to refuse it."""
