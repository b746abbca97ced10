"""Sources of a shard's weights, such as the conversion of a checkpoint's tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from rekindle.assembly.weights.load import Join, Put, abstract_of, load_weights
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.shard import Shard
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.weights.form import WeightForm
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class ShardWeights:
    """Weights on one device.

    Attributes:
        arrays: the arrays, in the programs' order.
        infinite: the number of float16 infinities; these numbers are finite in the checkpoint.
    """

    arrays: list[jax.Array]
    infinite: int = 0


Source = Callable[[Shard, Put], ShardWeights]
"""Function for reading the weights of a shard onto a device, given the device's `put`."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion of the tensors of a decoder or a tower, as `load_weights` describes.

    Attributes:
        config, tensors, form, implementation, joining, report_bytes: see `load_weights`.
    """

    config: ModelConfig | VisionConfig
    tensors: Mapping[str, Any]
    form: WeightForm
    implementation: Implementation
    joining: Join | None = None
    report_bytes: Callable[[int], None] = lambda _: None

    def __call__(self, shard: Shard, put: Put) -> ShardWeights:
        """Read and convert the tensors of a shard.

        Raises:
            ModelError: the process is ending.
        """
        infinite = list[int]()
        arrays = load_weights(
            self.config,
            self.tensors,
            self.form,
            self.report_bytes,
            put,
            self.implementation,
            shard,
            self.joining,
            infinite.append,
        )
        return ShardWeights(arrays, sum(infinite))

    def forms(self, shard: Shard) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return the shape and dtype of each array of a shard, in the programs' order."""
        return abstract_of(self.config, self.form, self.implementation, shard).forms
