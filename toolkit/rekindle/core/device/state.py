"""Device state between ticks: the page pool and the slots, with page copies out of and into the pool.

One page is copied at a time, over all layers. Measured on CPU (SmolLM2, 30 layers, pages of 64 tokens): a program for
eight pages copies no faster, compiles up to twenty times slower, and needs padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.device.sampling.adjustments import Adjustments
from rekindle.core.device.sampling.constraints import words_of
from rekindle.core.device.sampling.rows import COLUMNS
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.mixing import State
from rekindle_kernels import api as kernels

Pages = tuple[jax.Array, ...]
"""The page pool: for each layer with pages (pages, sides, kv_heads, page_size, head_dim), keys and values."""
Content = tuple[jax.Array, ...]
"""A copy of a page: for each kind of layer (layers, sides, kv_heads, page_size, head_dim), as stored."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the device state, apart from those of the model. They are named as in `Settings`.

    Attributes:
        windows: the number of decode rows with room for the state after them; 0 without drafts of a model with states.
    """

    num_pages: int
    page_size: int
    pages_per_request: int
    max_running: int
    max_logprobs: int
    windows: int = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Slots:
    """The running requests' state for the next tick. The last row is the null slot, used by padding.

    Attributes:
        token: (slots,) int32, the newest token, not yet in the pages.
        length: (slots,) int32, the number of positions in the pages, and so the newest token's position.
        page_table: (slots, pages_per_request) int32.
        sampling: (slots, COLUMNS) int32, packed `SamplingRows`.
        adjustments: bias, penalties and bans of each slot.
        allowed: (slots + max_running, words) int32, bit masks of allowed tokens: for each slot of a constrained request
            the mask of its next token, then for each decode row that of the token after its draft. Others are stale.
        states: one `State` for each layer with a state; stale until a request's first block, which begins with zeros.
            Before the null slot is room for the state after each decode row, if there may be drafts.
    """

    token: jax.Array
    length: jax.Array
    page_table: jax.Array
    sampling: jax.Array
    adjustments: Adjustments
    allowed: jax.Array
    states: tuple[State, ...] = ()


def empty_slots(
    max_running: int,
    pages_per_request: int,
    vocab_size: int,
    states: Sequence[Sequence[tuple[int, ...]]] = (),
    windows: int = 0,
) -> Slots:
    """Create the slots of an idle engine, and the null slot.

    Args:
        states: the shapes of a slot's state in each layer with a state, on this device.
        windows: see `Sizes`.
    """
    rows = max_running + 1
    of_states = rows + windows
    return Slots(
        token=jnp.zeros(rows, jnp.int32),
        length=jnp.zeros(rows, jnp.int32),
        page_table=jnp.zeros((rows, pages_per_request), jnp.int32),
        sampling=jnp.zeros((rows, COLUMNS), jnp.int32),
        adjustments=Adjustments.empty(rows, vocab_size),
        allowed=jnp.full((rows + max_running, words_of(vocab_size)), -1, jnp.int32),
        states=tuple(tuple(jnp.zeros((of_states, *shape), jnp.float32) for shape in state) for state in states),
    )


def empty_pages(
    config: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: jnp.dtype,
    implementation: kernels.Implementation | None = None,
    devices: int = 1,
) -> Pages:
    """Create one device's shard of a page pool, in the kernel format of `implementation`."""
    pools = config.pools(num_pages, page_size, devices)
    return tuple(kernels.empty(shape, dtype, implementation=implementation) for shape in pools)


def empty_state(
    config: ModelConfig, sizes: Sizes, dtype: jnp.dtype, implementation: kernels.Implementation, devices: int = 1
) -> tuple[Pages, Slots]:
    """Create one device's shard of the pages and slots of an idle engine."""
    pages = empty_pages(config, sizes.num_pages, sizes.page_size, dtype, implementation, devices)
    rows, table = sizes.max_running, sizes.pages_per_request
    return pages, empty_slots(rows, table, config.vocab_size, config.states(devices), sizes.windows)


def kinds_of(pages: Sequence[jax.Array | jax.ShapeDtypeStruct]) -> list[list[int]]:
    """Return the places of the layers of each kind: of pages with a common shape."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for place, layer in enumerate(pages):
        kinds.setdefault(layer.shape, []).append(place)
    return list(kinds.values())


def gather(pages: Pages, page_id: jax.Array, implementation: kernels.Implementation | None = None) -> Content:
    """Copy one page, () int32, out of the pool.

    Without `implementation`, the best kernels for this process's platform are used.
    """
    copy = partial(kernels.read_page, page_id=page_id, implementation=implementation)
    return tuple(jnp.stack([copy(pages[place]) for place in places]) for places in kinds_of(pages))


def scatter(
    pages: Pages, page_id: jax.Array, content: Content, implementation: kernels.Implementation | None = None
) -> Pages:
    """Copy a page from `gather` into the pool. The caller donates the pool."""
    kinds = zip(kinds_of(pages), content, strict=True)
    layers = {place: layer for places, of_kind in kinds for place, layer in zip(places, of_kind, strict=True)}
    return tuple(
        kernels.write_page(layer, page_id, layers[place], implementation=implementation)
        for place, layer in enumerate(pages)
    )


def gather_state(states: tuple[State, ...], slot: jax.Array) -> tuple[jax.Array, ...]:
    """Copy the states of one slot, () int32: the arrays of all layers."""
    return tuple(lax.dynamic_index_in_dim(array, slot, 0, keepdims=False) for state in states for array in state)


def scatter_state(states: tuple[State, ...], slot: jax.Array, content: Sequence[jax.Array]) -> tuple[State, ...]:
    """Copy states from `gather_state` into a slot. The caller donates the states."""
    rows = iter(content)
    return tuple(
        tuple(lax.dynamic_update_index_in_dim(array, next(rows), slot, 0) for array in state) for state in states
    )
