"""The protocol of an implementation: a module with these functions, which `api` calls with checked arguments."""

from typing import Protocol

import jax
import jax.numpy as jnp


class Operations(Protocol):
    """The functions of `reference`, `xla.operations`, `cpu.operations`, `tpu.operations` and `gpu.operations`, as `api` defines them."""

    def unserved(self, shape: tuple[int, ...], dtype: jnp.dtype) -> str | None:
        """Return why this implementation cannot serve a pool of this shape and dtype, or None if it can."""

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
    ) -> jax.Array:
        """See `api.attend_rows`."""

    def attend_blocks(
        self,
        q: jax.Array,
        pages: jax.Array,
        page_table: jax.Array,
        block_sequence: jax.Array,
        block_start: jax.Array,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None,
    ) -> jax.Array:
        """See `api.attend_blocks`."""
