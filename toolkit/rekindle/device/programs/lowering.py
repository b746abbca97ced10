"""The programs of one model, and how each is lowered: from shapes alone, without weights and without a device."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from rekindle.buckets import Bucket
from rekindle.device.adjustments import enter_slot, no_adjustments
from rekindle.device.inputs import InputLayout
from rekindle.device.state import Pages, Slots, empty_pages, empty_slots, gather, scatter
from rekindle.device.step import step
from rekindle.models.config import ModelConfig
from rekindle.models.decoder import abstract_decoder
from rekindle_kernels.api import choose

Program = Callable[..., Any]
"""A compiled function; what it takes and returns in new form is donated.

The step of a bucket: `program(weights, pages, slots, packed) -> (pages, slots, outputs)`.
EMPTY, the device state of an idle engine: `program() -> (pages, slots)`.
ENTER, which enters a slot: `program(adjustments, slot, packed) -> adjustments`.
GATHER, which copies a page out of the pool: `program(pages, page_id) -> content`.
SCATTER, which puts one back into it: `program(pages, page_id, content) -> pages`.
"""

EMPTY: Final = "empty"
ENTER: Final = "enter"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
Key = Bucket | Literal["empty", "enter", "gather", "scatter"]
"""What a program is for."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the shapes of the device state follow from, beside the model; the names are those of `Limits`."""

    num_pages: int
    page_size: int
    pages_per_request: int
    max_running: int
    max_logprobs: int


def program_name(key: Key) -> str:
    """In words, the same in every process."""
    return f"step of {key.prefill_tokens}+{key.decode_rows}" if isinstance(key, Bucket) else key


class Programs:
    """Lowers the programs of one model.

    Args:
        config: the model.
        sizes: of the device state.
        dtype: of weights and pages.
        platform: "cpu", "gpu" or "tpu", that they are to run on.
        place: where all arguments are to be; None for the default device.

    Attributes:
        weights: shapes of the model's arrays, in the order in which every step takes them.
        page: shape of what GATHER gives.
        platform: as given.
    """

    def __init__(
        self, config: ModelConfig, sizes: Sizes, dtype: jnp.dtype, platform: str, place: Sharding | None = None
    ):
        decoder, _ = abstract_decoder(config)
        graph, state = nnx.split(decoder)
        leaves, treedef = jax.tree.flatten(state)
        self.weights = [jax.ShapeDtypeStruct(leaf.shape, dtype) for leaf in leaves]
        self.platform = platform
        self._sizes = sizes
        self._place = place
        pool = (sizes.num_pages, 2, config.num_kv_heads, sizes.page_size, config.head_dim)
        self._dtype = dtype.name
        self._kernels = kernels = choose(platform, pool, dtype)

        def empty() -> tuple[Pages, Slots]:
            pages = empty_pages(config, sizes.num_pages, sizes.page_size, dtype, kernels)
            return pages, empty_slots(sizes.max_running, sizes.pages_per_request, config.vocab_size)

        def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
            decoder = nnx.merge(graph, jax.tree.unflatten(treedef, weights))
            return step(decoder, pages, slots, packed, bucket, sizes.max_logprobs, kernels)

        self._pages, self._slots = jax.eval_shape(empty)
        layer = self._pages[0]
        self.page = jax.ShapeDtypeStruct((len(self._pages), *layer.shape[1:]), layer.dtype)
        self._empty = jax.jit(empty, out_shardings=place)
        self._step = jax.jit(run, donate_argnames=("pages", "slots"), static_argnames="bucket")
        self._enter = jax.jit(enter_slot, donate_argnames="adjustments")
        self._gather = jax.jit(partial(gather, implementation=kernels))
        self._scatter = jax.jit(partial(scatter, implementation=kernels), donate_argnames="pages")

    @property
    def statics(self) -> dict[str, int | str]:
        """What is compiled into programs and does not show in the model's config."""
        return asdict(self._sizes) | {"dtype": self._dtype, "kernels": self._kernels}

    def layout(self, bucket: Bucket) -> InputLayout:
        """Of the packed array that the step of the bucket takes."""
        return InputLayout.of(bucket, self._slots)

    def arguments(self, key: Key) -> dict[str, Any]:
        """What the program takes, by name and in order, as shapes."""
        match key:
            case "empty":
                return {}
            case "enter":
                adjustments = self._slots.adjustments
                packed = no_adjustments(adjustments.bias.shape[1])
                return {"adjustments": adjustments, "slot": np.int32(0), "packed": packed}
            case "gather":
                return {"pages": self._pages, "page_id": np.int32(0)}
            case "scatter":
                return {"pages": self._pages, "page_id": np.int32(0), "content": self.page}
            case Bucket():
                packed = self.layout(key).padding()
                return {"weights": self.weights, "pages": self._pages, "slots": self._slots, "packed": packed}

    def lowered(self, key: Key, arguments: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower one program, which can take seconds.

        Args:
            key: which one.
            arguments: to lower it for others than `arguments(key)`.
        """
        if arguments is None:
            arguments = jax.tree.map(self._placed, tuple(self.arguments(key).values()))
        match key:
            case "empty":
                return self._empty.lower()
            case "enter":
                return self._enter.lower(*arguments)
            case "gather":
                return self._gather.lower(*arguments)
            case "scatter":
                return self._scatter.lower(*arguments)
            case Bucket():
                return self._step.lower(*arguments, bucket=key)

    def _placed(self, argument: Any) -> Any:
        if self._place is None:
            return argument
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=self._place)
