"""The definition of each operation in plain JAX: short, slow, and what every implementation is compared with."""

import jax
import jax.numpy as jnp


def attend(q: jax.Array, pages: jax.Array, page_table: jax.Array, visible: jax.Array, scale: float) -> jax.Array:
    """See `api.attend`."""
    kv_heads, page_size = pages.shape[2:4]
    group = q.shape[2] // kv_heads

    def one(q: jax.Array, table: jax.Array, visible: jax.Array) -> jax.Array:
        context = jnp.moveaxis(pages[table], 3, 1).astype(jnp.float32)
        keys, values = jnp.repeat(context.reshape(-1, *context.shape[2:]), group, axis=2).swapaxes(0, 1)
        seen = (jnp.arange(len(keys))[None] < visible[:, None])[:, None, :]
        scores = jnp.einsum("qhd,shd->qhs", q.astype(jnp.float32), keys) * scale
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        return jnp.einsum("qhs,shd->qhd", jnp.where(seen, weights, 0.0), values)

    return jax.vmap(one)(q, jnp.clip(page_table, 0, len(pages) - 1), visible)


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`."""
    for block, page, offset in zip(kv, page_ids, offsets, strict=True):
        rows = offset + jnp.arange(block.shape[2])
        pages = pages.at[page, :, :, rows].set(jnp.moveaxis(block, 2, 0).astype(pages.dtype))
    return pages


def read_page(pages: jax.Array, page_id: jax.Array) -> jax.Array:
    """See `api.read_page`."""
    return pages[page_id]


def write_page(pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
    """See `api.write_page`."""
    return pages.at[page_id].set(content)
