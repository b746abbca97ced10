"""Copying pages out of the pool and back moves all layers of a page and nothing else, and never copies the pool."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.device.page_form import PageForm
from rekindle.core.device.place import Place
from rekindle.core.device.state import Pages, empty_pages, gather, scatter
from rekindle.core.models.config import ModelConfig, Rope

MODEL = ModelConfig.llama(
    family="llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=4, max_context=64, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


WIDE = replace(MODEL.layers[0], attention=replace(MODEL.attentions[0], kv_heads=1, head_dim=16))
TWO_KINDS = replace(MODEL, layers=(MODEL.layers[0], WIDE, *MODEL.layers[1:], WIDE, replace(WIDE, pages_of=1)))
"""A model with pages of two shapes, and with a layer over the pages of another one."""


def random_pages(config: ModelConfig, dtype: str) -> Pages:
    rng = np.random.default_rng(0)
    empty = empty_pages(config, 7, 16, jnp.dtype(dtype))
    return tuple(jnp.asarray(rng.integers(0, 60000, layer.shape).astype(layer.dtype)) for layer in empty)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("config", [MODEL, TWO_KINDS], ids=["one kind", "two kinds"])
def test_a_page_is_gathered_over_all_layers_and_scattered_into_one_page(config: ModelConfig, dtype: str) -> None:
    pool = random_pages(config, dtype)
    expected = [np.array(layer) for layer in pool]
    form = PageForm.of(config, pool, Place((jax.devices()[0],)))
    copy: jax.Array = jax.jit(lambda pages, page: form.join(gather(pages, page)))(pool, np.int32(5))
    assert (copy.shape, copy.dtype) == (form.array.shape, form.array.dtype)
    assert sorted(np.asarray(copy).reshape(-1)) == sorted(np.concatenate([layer[5].reshape(-1) for layer in expected]))
    write = jax.jit(lambda pages, page, copy: scatter(pages, page, form.split(copy)), donate_argnames="pages")
    after = write(pool, np.int32(2), copy)
    for layer, before in zip(after, expected, strict=True):
        before[2] = before[5]
        np.testing.assert_array_equal(np.asarray(layer), before)


def test_a_model_of_one_kind_of_layers_has_copies_over_layers() -> None:
    pool = random_pages(MODEL, "float32")
    (content,) = gather(pool, jnp.int32(3))
    np.testing.assert_array_equal(np.asarray(content), np.stack([np.asarray(layer)[3] for layer in pool]))


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
