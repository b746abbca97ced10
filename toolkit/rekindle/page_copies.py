"""Whole pages out of the pool and back into it, one page over all layers at a time.

Measured on CPU (SmolLM2, 30 layers, pages of 64 tokens): a program for eight pages at a time copies no faster, takes up
to twenty times as long to compile, and has to be padded.
"""

import jax
import jax.numpy as jnp

from rekindle.step import Pages
from rekindle_kernels import api as kernels


def page_bytes(pages: Pages) -> int:
    """What one page takes over all layers."""
    return sum(layer.nbytes // len(layer) for layer in pages)


def gather(pages: Pages, page_id: jax.Array, implementation: kernels.Implementation | None = None) -> jax.Array:
    """A copy of one page.

    Args:
        pages: the pool.
        page_id: () int32.
        implementation: of the kernels; None is the best for this process's platform.

    Returns:
        (layers, 2, kv_heads, page_size, head_dim) in the pool's stored form.
    """
    return jnp.stack([kernels.read_page(layer, page_id, implementation=implementation) for layer in pages])


def scatter(
    pages: Pages, page_id: jax.Array, content: jax.Array, implementation: kernels.Implementation | None = None
) -> Pages:
    """The pool, donated by the caller, with a page in it that `gather` gave."""
    return tuple(
        kernels.write_page(layer, page_id, content[place], implementation=implementation)
        for place, layer in enumerate(pages)
    )
