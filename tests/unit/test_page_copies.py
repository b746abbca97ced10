"""Copying pages out of the pool and back moves all layers of a page and nothing else, and never copies the pool."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.device.state import Pages, empty_pages, gather, scatter
from rekindle.core.models.config import ModelConfig, Rope

MODEL = ModelConfig.llama(
    family="llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=4, max_context=64, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


@pytest.fixture(params=["float32", "bfloat16"])
def pool(request: pytest.FixtureRequest) -> Pages:
    empty = empty_pages(MODEL, 7, 16, jnp.dtype(request.param))
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.integers(0, 60000, layer.shape).astype(layer.dtype)) for layer in empty)


def test_a_page_is_gathered_over_all_layers_and_scattered_into_one_page(pool: Pages) -> None:
    expected = np.stack([np.array(layer) for layer in pool])
    content = jax.jit(gather)(pool, np.int32(5))
    np.testing.assert_array_equal(np.asarray(content), expected[:, 5])
    after = jax.jit(scatter, donate_argnames="pages")(pool, np.int32(2), content)
    expected[:, 2] = expected[:, 5]
    np.testing.assert_array_equal(np.stack([np.asarray(layer) for layer in after]), expected)


def test_scattering_copies_no_layer_of_the_pool() -> None:
    pool = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((999, *x.shape[1:]), x.dtype), empty_pages(MODEL, 1, 16, jnp.dtype("float32"))
    )
    content = jax.eval_shape(gather, pool, np.int32(0))
    compiled = jax.jit(scatter, donate_argnames="pages").lower(pool, np.int32(0), content).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == sum(layer.size * 4 for layer in pool)
    assert memory.temp_size_in_bytes < pool[0].size * 4
