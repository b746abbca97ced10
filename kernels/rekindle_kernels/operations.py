"""Protocol of an implementation: a module with these functions, called with checked arguments."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.inputs import Input
from rekindle_kernels.penalties import Penalties
from rekindle_kernels.storage import Piece, Storage, Weight


class Operations(Protocol):
    """Functions of `reference` and of each package's `operations`, documented in `api`, `layers`, `states`
    and `sampling`.
    """

    def unsupported_reason(
        self, shape: tuple[int, ...], dtype: jnp.dtype, weights: jnp.dtype | None = None
    ) -> str | None:
        """Return the reason pages of this shape and dtype, or weights of a dtype, are not supported, or None."""

    def empty(self, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        """See `api.empty`."""

    def write(self, pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
        """See `api.write`."""

    def read_page(self, pages: jax.Array, page_id: jax.Array) -> jax.Array:
        """See `api.read_page`."""

    def write_page(self, pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
        """See `api.write_page`."""

    def attend_rows(
        self,
        q: jax.Array,
        pages: jax.Array,
        page_table: jax.Array,
        visible: jax.Array,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: jax.Array | None,
    ) -> jax.Array:
        """See `api.attend_rows`."""

    def attend_blocks(
        self,
        q: jax.Array,
        pages: jax.Array,
        page_table: jax.Array,
        block_sequence: jax.Array,
        block_start: jax.Array,
        visible_until: jax.Array | None,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: jax.Array | None,
    ) -> jax.Array:
        """See `api.attend_blocks`."""

    def packed(self, shape: tuple[int, int], dtype: jnp.dtype | Storage) -> Any:
        """See `layers.packed`."""

    def pack(self, parts: Sequence[Tensor], into: Array) -> None:
        """See `layers.pack`."""

    def pack_blocks(self, pieces: Iterable[Piece], into: Any, storage: Storage) -> None:
        """Write the pieces of a matrix; see `layers.pack_blocks`."""

    def linear(self, x: Input, weight: Weight, outputs: int, onto: jax.Array | None = None) -> jax.Array:
        """See `layers.linear`."""

    def linear_columns(self, x: jax.Array, weight: Weight, outputs: int) -> jax.Array:
        """See `layers.linear_columns`."""

    def grouped_linear(self, x: jax.Array, counts: jax.Array | None, weight: Weight, outputs: int) -> jax.Array:
        """See `layers.grouped_linear`."""

    def low_rank(
        self,
        x: jax.Array,
        groups: jax.Array,
        first: jax.Array,
        second: jax.Array,
        sizes: tuple[int, int],
        onto: jax.Array,
    ) -> jax.Array:
        """See `layers.low_rank`."""

    def look_up(self, weight: Weight, ids: jax.Array, features: int) -> jax.Array:
        """See `layers.look_up`."""

    def rms_norm(self, x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
        """See `layers.rms_norm`."""

    def layer_norm(self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, eps: float) -> jax.Array:
        """See `layers.layer_norm`."""

    def rotate(self, qkv: jax.Array, cos: jax.Array, sin: jax.Array, kv_heads: int) -> tuple[jax.Array, jax.Array]:
        """See `layers.rotate`."""

    def gate(self, x: jax.Array) -> jax.Array:
        """See `layers.gate`."""

    def convolve_blocks(
        self,
        x: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        states: jax.Array,
        slots: jax.Array,
        starts: jax.Array,
        counts: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """See `states.convolve_blocks`."""

    def convolve_rows(
        self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, states: jax.Array, slots: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `states.convolve_rows`."""

    def recur_blocks(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array | None,
        states: jax.Array,
        slots: jax.Array,
        starts: jax.Array,
        counts: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """See `states.recur_blocks`."""

    def recur_rows(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array | None,
        states: jax.Array,
        slots: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """See `states.recur_rows`."""

    def mass(self, columns: jax.Array, largest: jax.Array, temperature: jax.Array, least: jax.Array) -> jax.Array:
        """See `sampling.mass`."""

    def argmax(self, columns: jax.Array) -> jax.Array:
        """See `sampling.argmax`."""

    def nth_largest(self, columns: jax.Array, n: jax.Array) -> jax.Array:
        """See `sampling.nth_largest`."""

    def count_above(self, columns: jax.Array, bound: jax.Array) -> jax.Array:
        """See `sampling.count_above`."""

    def draw(
        self,
        columns: jax.Array,
        keys: tuple[jax.Array, jax.Array],
        largest: jax.Array,
        temperature: jax.Array,
        least: jax.Array,
    ) -> jax.Array:
        """See `sampling.draw`."""

    def adjust(
        self, columns: jax.Array, bias: jax.Array, marks: jax.Array, owners: jax.Array, penalties: Penalties
    ) -> jax.Array:
        """See `sampling.adjust`."""
