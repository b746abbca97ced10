"""One adapter, independent of the storage format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core.content import content_digest
from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.adapters.products import LinearShard
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class LowRank:
    """The summand `scale * b @ a` of one projection's weight.

    Attributes:
        a: (rank, in) float32.
        b: (out, rank) float32, with rows in the order of Hugging Face checkpoints.
        scale: the factor.
    """

    a: Array
    b: Array
    scale: float


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter: the summands of some of a model's projections.

    Attributes:
        source: the path of the adapter, for error messages.
        parts: the summands, by the projection's name in the model, without ".weight".
    """

    source: str
    parts: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(len(part.a) for part in self.parts.values())

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers, as 64 hexadecimal digits: equal digests stand for equal adapters."""
        return content_digest(dict(sorted(self.parts.items())))

    def check(self, config: ModelConfig, products: tuple[LinearShard, ...], rank: int) -> None:
        """Check the adapter against a model.

        Raises:
            UnsupportedModel: a projection has no counterpart in the model, or another shape; the rank is larger; or
                a number is not finite.
        """
        shapes = {name: (rows, product.inputs) for product in products for name, rows in product.parts.items()}
        for name, part in self.parts.items():
            if name not in shapes:
                raise UnsupportedModel(f"{self.source}: an adapter of {name} {_reason(name, config)}")
            if (len(part.b), part.a.shape[1]) != shapes[name]:
                raise UnsupportedModel(
                    f"{self.source}: {name} maps {part.a.shape[1]} features to {len(part.b)} in the adapter, and "
                    f"{shapes[name][1]} to {shapes[name][0]} in the model: it was trained for another model"
                )
            if not (np.isfinite(part.a).all() and np.isfinite(part.b).all() and np.isfinite(part.scale)):
                raise UnsupportedModel(f"{self.source}: the adapter of {name} has numbers that are not finite")
        if self.rank > rank:
            raise UnsupportedModel(
                f"{self.source}: the adapter has rank {self.rank}, and this session has room for rank {rank}: open "
                f"it with max_adapter_rank={self.rank}"
            )


def _reason(name: str, config: ModelConfig) -> str:
    names = config.names
    if name == names.embedding:
        return "changes the embeddings, which adapters here cannot: train it without"
    if f"{name}.weight" in expected_shapes(config) or ".experts" in name:
        return "is for experts or another part that is no linear layer of all tokens: train it without"
    return f"has no counterpart in a model of the family {config.family}"
