"""The programs of one model, and how each is lowered from shapes alone, without weights and without a device."""

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
"""A compiled function; arguments that it returns in new form are donated.

The step of a bucket: `program(weights, pages, slots, packed) -> (pages, slots, outputs)`.
EMPTY makes the device state of an idle engine: `program() -> (pages, slots)`.
ENTER enters a slot: `program(adjustments, slot, packed) -> adjustments`.
GATHER copies a page out of the pool: `program(pages, page_id) -> content`.
SCATTER copies a page into the pool: `program(pages, page_id, content) -> pages`.
"""

EMPTY: Final = "empty"
ENTER: Final = "enter"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
Key = Bucket | Literal["empty", "enter", "gather", "scatter"]
"""The use of a program."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that shape the device state, beside the model; the names are those of `Limits`."""

    num_pages: int
    page_size: int
    pages_per_request: int
    max_running: int
    max_logprobs: int


def program_name(key: Key) -> str:
    """Return a program's name in words, the same in every process."""
    return f"step of {key.prefill_tokens}+{key.decode_rows}" if isinstance(key, Bucket) else key


class Programs:
    """Lowers the programs of one model.

    Args:
        dtype: of weights and pages.
        platform: "cpu", "gpu" or "tpu", which the programs are to run on.
        place: where all arguments are to be; None for the default device.

    Attributes:
        statics: values that are compiled into the programs and are not in the model's config, by name.
    """

    def __init__(
        self, config: ModelConfig, sizes: Sizes, dtype: jnp.dtype, platform: str, place: Sharding | None = None
    ):
        decoder, _ = abstract_decoder(config)
        graph, state = nnx.split(decoder)
        leaves, treedef = jax.tree.flatten(state)
        self._weights = [jax.ShapeDtypeStruct(leaf.shape, dtype) for leaf in leaves]
        self._place = place
        pool = (sizes.num_pages, 2, config.num_kv_heads, sizes.page_size, config.head_dim)
        kernels = choose(platform, pool, dtype)
        self.statics: dict[str, int | str] = asdict(sizes) | {"dtype": dtype.name, "kernels": kernels}

        def empty() -> tuple[Pages, Slots]:
            pages = empty_pages(config, sizes.num_pages, sizes.page_size, dtype, kernels)
            return pages, empty_slots(sizes.max_running, sizes.pages_per_request, config.vocab_size)

        def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
            decoder = nnx.merge(graph, jax.tree.unflatten(treedef, weights))
            return step(decoder, pages, slots, packed, bucket, sizes.max_logprobs, kernels)

        self._pages, self._slots = jax.eval_shape(empty)
        self._step = jax.jit(run, donate_argnames=("pages", "slots"), static_argnames="bucket")
        self._others: dict[str, jax.stages.Wrapped] = {
            EMPTY: jax.jit(empty, out_shardings=place),
            ENTER: jax.jit(enter_slot, donate_argnames="adjustments"),
            GATHER: jax.jit(partial(gather, implementation=kernels)),
            SCATTER: jax.jit(partial(scatter, implementation=kernels), donate_argnames="pages"),
        }

    @property
    def page(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a page over all layers, as GATHER returns it."""
        layer = self._pages[0]
        return jax.ShapeDtypeStruct((len(self._pages), *layer.shape[1:]), layer.dtype)

    def arguments(self, key: Key) -> dict[str, Any]:
        """Return the shapes of what a program takes, by name and in order."""
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
                packed = InputLayout.of(key, self._slots).padding()
                return {"weights": self._weights, "pages": self._pages, "slots": self._slots, "packed": packed}

    def lowered(self, key: Key, arguments: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower one program, which can take seconds.

        Args:
            arguments: to lower the program for others than `arguments(key)`.
        """
        if arguments is None:
            arguments = jax.tree.map(self._placed, tuple(self.arguments(key).values()))
        if isinstance(key, Bucket):
            return self._step.lower(*arguments, bucket=key)
        return self._others[key].lower(*arguments)

    def _placed(self, argument: Any) -> Any:
        if self._place is None:
            return argument
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=self._place)
