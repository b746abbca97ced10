"""The real TPU compiler takes every TPU kernel, and whole steps with them, for absent chips."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rekindle.assembly.loading.kinds import quantized_kinds
from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.state import empty_pages, empty_slots
from rekindle.core.device.step import step
from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import Quantize, WeightForm
from rekindle_kernels import api
from rekindle_kernels.tpu import blocks, form, rows
from tests.kernels import narrow_programs, state_programs
from tests.kernels.topologies import V5E, V5P, V6E, chip
from tests.published import CONFIGS, published
from tests.vision import CUT_TOWERS, cut_program, published_program

Shape = jax.ShapeDtypeStruct
INT32, FLOAT32, BFLOAT16 = jnp.dtype("int32"), jnp.dtype("float32"), jnp.dtype("bfloat16")
ALL = pytest.mark.parametrize("topology", [V5E, V6E, V5P])

SMOLLM2 = ModelConfig.llama("llama", 49152, 576, 1536, 30, 9, 3, 64, 2048, 1e-5, Rope(100000.0), tied_embeddings=True)
LLAMA_3_8B = ModelConfig.llama("llama", 128256, 4096, 14336, 32, 32, 8, 128, 8192, 1e-5, Rope(500000.0))


LLAMA_OF_TWO = replace(LLAMA_3_8B, layers=LLAMA_3_8B.layers[:2])
"""Its other layers are the same."""

PLAIN = WeightForm(BFLOAT16)


def lowered(topology: str, function: Callable[..., Any], *shapes: Any, donated: tuple[int, ...] = ()) -> Any:
    """Lower a program for one chip. A compiled step would have no text, because jaxlib cannot parse libtpu's."""
    sharding = chip(topology)
    arguments = jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=sharding), shapes)
    (device,) = sharding.device_set
    with jax.default_device(device):
        return jax.jit(function, donate_argnums=donated).lower(*arguments)


def compiled(topology: str, function: Callable[..., Any], *shapes: Any, donated: tuple[int, ...] = ()) -> Any:
    """Compile a program for one chip."""
    return lowered(topology, function, *shapes, donated=donated).compile()


def pool(head_dim: int, dtype: jnp.dtype, page_size: int = 64, kv_heads: int = 8, pages: int = 513) -> Shape:
    """Return the shape of a pool, much larger than all else in a program."""
    return Shape(form.stored_shape((pages, 2, kv_heads, page_size, head_dim)), dtype)


def size(pages: Shape) -> int:
    total: int = math.prod(pages.shape) * pages.dtype.itemsize
    return total


def assert_within(measured: float, stated: float) -> None:
    assert stated / 1.3 <= measured <= stated * 1.3, f"the program's own analysis says {measured:g}, we {stated:g}"


@ALL
@pytest.mark.parametrize(("head_dim", "count", "dtype", "window", "soft_cap"), [
    (64, 32, BFLOAT16, None, None), (64, 1, FLOAT32, 512, 30.0), (80, 1, BFLOAT16, None, 30.0),
    (96, 9, FLOAT32, 512, None), (128, 32, BFLOAT16, None, None), (256, 8, BFLOAT16, 512, 30.0),
])  # fmt: skip
def test_attention_of_rows_compiles_and_never_copies_the_pool(
    topology: str, head_dim: int, count: int, dtype: jnp.dtype, window: int | None, soft_cap: float | None
) -> None:
    pages = pool(head_dim, dtype)
    function = partial(api.attend_rows, scale=0.125, window=window, soft_cap=soft_cap, implementation="tpu")
    shapes = (Shape((count, 32, head_dim), FLOAT32), pages, Shape((count, 64), INT32), Shape((count,), INT32))
    program = compiled(topology, function, *shapes)
    assert "rekindle_attend_rows" in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < size(pages) / 2


@ALL
@pytest.mark.parametrize(("head_dim", "group", "dtype", "window", "soft_cap"), [
    (64, 3, BFLOAT16, None, None), (80, 1, BFLOAT16, None, 30.0), (96, 1, FLOAT32, 512, None),
    (128, 4, BFLOAT16, None, None), (256, 2, BFLOAT16, 512, 30.0),
])  # fmt: skip
def test_attention_of_blocks_compiles_and_never_copies_the_pool(
    topology: str, head_dim: int, group: int, dtype: jnp.dtype, window: int | None, soft_cap: float | None
) -> None:
    pages, of_block = pool(head_dim, dtype), Shape((32,), INT32)
    function = partial(api.attend_blocks, scale=0.125, window=window, soft_cap=soft_cap, implementation="tpu")
    q = Shape((32, 16, 8 * group, head_dim), FLOAT32)
    program = compiled(topology, function, q, pages, Shape((9, 64), INT32), of_block, of_block)
    assert "rekindle_attend_blocks" in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < size(pages) / 2


@ALL
@pytest.mark.parametrize(("head_dim", "group", "window"), [(256, 2, 512), (128, 4, None)])
def test_attention_to_later_tokens_compiles(topology: str, head_dim: int, group: int, window: int | None) -> None:
    pages, of_block = pool(head_dim, BFLOAT16), Shape((32,), INT32)
    function = partial(api.attend_blocks, scale=0.125, window=window, implementation="tpu")
    q, until = Shape((32, 16, 8 * group, head_dim), FLOAT32), Shape((32, 16), INT32)
    program = compiled(topology, function, q, pages, Shape((9, 64), INT32), of_block, of_block, until)
    assert "rekindle_attend_blocks" in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < size(pages) / 2


@ALL
@pytest.mark.parametrize("page_size", [16, 32, 128])
def test_attention_over_pages_of_every_size_compiles(topology: str, page_size: int) -> None:
    pages, places = pool(64, BFLOAT16, page_size, kv_heads=3), Shape((8,), INT32)
    kwargs = {"scale": 0.125, "implementation": "tpu"}
    table = Shape((8, 2048 // page_size), INT32)
    decode = partial(api.attend_rows, **kwargs)  # type: ignore[arg-type]
    prefill = partial(api.attend_blocks, **kwargs)  # type: ignore[arg-type]
    assert compiled(topology, decode, Shape((8, 9, 64), FLOAT32), pages, table, places)
    assert compiled(topology, prefill, Shape((8, 16, 9, 64), FLOAT32), pages, table, places, places)


@ALL
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, BFLOAT16), (80, FLOAT32), (128, BFLOAT16), (256, FLOAT32)])
@pytest.mark.parametrize("tokens", [1, 16])
def test_writing_compiles_in_place(topology: str, dtype: jnp.dtype, head_dim: int, tokens: int) -> None:
    pages, places = pool(head_dim, dtype), Shape((32,), INT32)
    function = partial(api.write, implementation="tpu")
    kv = Shape((32, 2, 8, tokens, head_dim), FLOAT32)
    program = compiled(topology, function, pages, kv, places, places, donated=(0,))
    assert program.memory_analysis().alias_size_in_bytes == size(pages)
    assert program.memory_analysis().temp_size_in_bytes < size(pages) / 2


@ALL
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_page_is_copied_in_place(topology: str, head_dim: int) -> None:
    pages, page_id = pool(head_dim, BFLOAT16), Shape((), INT32)
    content = Shape(pages.shape[1:], pages.dtype)
    writer = compiled(topology, partial(api.write_page, implementation="tpu"), pages, page_id, content, donated=(0,))
    assert writer.memory_analysis().alias_size_in_bytes == size(pages)
    assert writer.memory_analysis().temp_size_in_bytes < size(pages) / 2
    reader = compiled(topology, partial(api.read_page, implementation="tpu"), pages, page_id)
    assert reader.memory_analysis().temp_size_in_bytes < size(pages) / 2
    for program in (reader, writer):
        assert_within(program.cost_analysis()["bytes accessed"], 2 * size(content))


@pytest.mark.parametrize("topology", [V5E, V6E])
@pytest.mark.parametrize("name", state_programs.TPU)
def test_states_are_updated_in_place(topology: str, name: str) -> None:
    program = state_programs.TPU[name]
    memory = compiled(topology, program.function, *program.shapes, donated=(program.donated,)).memory_analysis()
    assert memory.alias_size_in_bytes >= program.state_bytes
    assert memory.temp_size_in_bytes < program.state_bytes / 2


@ALL
def test_the_stated_cost_of_decode_attention_is_the_program_s(topology: str) -> None:
    pages, heads, count = pool(128, BFLOAT16), 32, 32
    function = partial(api.attend_rows, scale=0.125, implementation="tpu")
    shapes = (Shape((count, heads, 128), FLOAT32), pages, Shape((count, 64), INT32), Shape((count,), INT32))
    measured = compiled(topology, function, *shapes).cost_analysis()
    stated = rows.cost(count, heads, 128, 64 * 64, pages)
    assert_within(measured["flops"], stated.flops)
    assert_within(measured["bytes accessed"], stated.bytes_accessed)
    assert_within(stated.bytes_accessed, count * 4096 * 8 * 2 * 128 * 2)  # each key and value once


@ALL
def test_the_stated_cost_of_prefill_attention_is_the_program_s(topology: str) -> None:
    pages, heads, of_block = pool(128, BFLOAT16), 32, Shape((128,), INT32)
    function = partial(api.attend_blocks, scale=0.125, implementation="tpu")
    q = Shape((128, 16, heads, 128), FLOAT32)
    measured = compiled(topology, function, q, pages, Shape((9, 128), INT32), of_block, of_block).cost_analysis()
    stated = blocks.cost(16, 128, heads, 128, 64 * 128 // 2, pages)
    assert_within(measured["flops"], stated.flops)
    assert_within(stated.flops, 4 * 2048 * 4096 * heads * 128)
    assert_within(stated.bytes_accessed, 16 * (4096 * 8 * 2 * 128 * 2 + 128 * heads * 128 * 6))


@pytest.mark.parametrize("topology", [V5E, V6E])
@pytest.mark.parametrize("name", narrow_programs.TPU)
def test_codes_are_multiplied_without_widening_them_in_memory(topology: str, name: str) -> None:
    case = narrow_programs.TPU[name]
    program = compiled(topology, case.function, *case.shapes)
    assert program.memory_analysis().temp_size_in_bytes <= case.temporary
    assert not narrow_programs.wide_arrays(program.as_text())


@pytest.mark.parametrize(
    ("topology", "quantize"), [(V5E, "int4"), (V6E, "int8"), pytest.param(V6E, "int4", marks=pytest.mark.deep)]
)
def test_a_step_with_quantized_weights_widens_none_of_them(topology: str, quantize: Quantize) -> None:
    kinds = quantized_kinds(LLAMA_OF_TWO, quantize, [WHOLE], is_accelerator=True)
    form = WeightForm(BFLOAT16, kinds, "bfloat16", quantize)
    program, _ = _lowered_step(topology, LLAMA_OF_TWO, Bucket(0, 8), form)
    memory = program.compile().memory_analysis()
    hidden, width = LLAMA_OF_TWO.hidden_size, 14336
    assert memory.temp_size_in_bytes < hidden * width  # half of one matrix in bfloat16, of two in each layer
    wide, _ = _lowered_step(topology, LLAMA_OF_TWO, Bucket(0, 8))
    least = 2 * LLAMA_OF_TWO.vocab_size * hidden  # embedding and head save one byte of each number
    assert wide.compile().memory_analysis().argument_size_in_bytes - memory.argument_size_in_bytes > least


def _lowered_step(topology: str, config: ModelConfig, bucket: Bucket, weights: WeightForm = PLAIN) -> tuple[Any, int]:
    """Return the lowered step with abstract weights, and the bytes of its pools."""
    abstract = abstract_decoder(config, weights, "tpu")
    pages = jax.eval_shape(lambda: empty_pages(config, 1025, 64, BFLOAT16, "tpu"))
    slots = jax.eval_shape(lambda: empty_slots(32, 32, config.vocab_size))
    packed = InputLayout.of(bucket, slots).padding()

    def run(pages: Any, slots: Any, weights: Any, packed: Any) -> Any:
        return step(abstract.with_weights(weights), pages, slots, packed, bucket, 5)

    program = lowered(topology, run, pages, slots, list(abstract.forms), Shape(packed.shape, INT32), donated=(0, 1))
    return program, sum(size(layer) for layer in pages)


def _check_step(topology: str, config: ModelConfig, bucket: Bucket, beside: int = 0) -> None:
    program, pool_bytes = _lowered_step(topology, config, bucket)
    text = program.as_text()
    used = ("rekindle_attend_blocks" in text, "rekindle_attend_rows" in text)
    assert used == (bucket.prefill_tokens > 0, bucket.decode_rows > 0)
    memory = program.compile().memory_analysis()
    assert memory.alias_size_in_bytes >= pool_bytes
    assert memory.temp_size_in_bytes - beside < pool_bytes * 3 / 4  # no room for a copy of the pools


@pytest.mark.parametrize(
    ("topology", "config", "bucket"),
    [
        (V5E, SMOLLM2, Bucket(0, 16)),
        (V6E, LLAMA_OF_TWO, Bucket(256, 4)),
        pytest.param(V5P, LLAMA_OF_TWO, Bucket(0, 32), marks=pytest.mark.deep),
    ],
)
def test_a_step_compiles_and_updates_its_pages_in_place(topology: str, config: ModelConfig, bucket: Bucket) -> None:
    _check_step(topology, config, bucket)


@pytest.mark.parametrize(
    ("topology", "bucket", "model"),
    [
        *((V5E, Bucket(0, 1), model) for model in CONFIGS),
        (V6E, Bucket(256, 0), "gpt-oss-20b"),
        # Its VMEM has room for these logits; libtpu has aborted over where in it they are to be.
        (V6E, Bucket(0, 32), "gemma-2-2b"),
        *(
            pytest.param(V6E, bucket, model, marks=pytest.mark.deep)
            for bucket in (Bucket(256, 0), Bucket(0, 32))
            for model in CONFIGS
            if (bucket.decode_rows, model) not in ((0, "gpt-oss-20b"), (32, "gemma-2-2b"))
        ),
    ],
)
def test_a_step_with_each_kind_of_layer_compiles_at_its_true_widths(topology: str, bucket: Bucket, model: str) -> None:
    # For more than a few rows, XLA turns round weights whose inputs are no multiple of 128, of one layer at a time.
    turned = 2 * 32 * 3 * 2880 * 2880 if model == "gpt-oss-20b" and bucket.size > 1 else 0
    # Draws of many rows have several arrays of all their logits.
    draws = 12 * 4 * bucket.decode_rows * published(model).vocab_size
    _check_step(topology, published(model), bucket, turned + draws)


@ALL
@pytest.mark.deep
@pytest.mark.parametrize("config", [SMOLLM2, LLAMA_3_8B], ids=["smollm2", "llama-3-8b"])
@pytest.mark.parametrize("bucket", [Bucket(512, 0), Bucket(0, 32), Bucket(256, 16)])
def test_every_step_compiles_with_all_of_its_layers(topology: str, config: ModelConfig, bucket: Bucket) -> None:
    if (topology, config) == (V5E, LLAMA_3_8B):
        config = replace(config, layers=config.layers[:8])  # one such chip has no room for more
    _check_step(topology, config, bucket)


@pytest.mark.parametrize(
    ("topology", "tiles"), [(V5E, 1), *(pytest.param(each, 17, marks=pytest.mark.deep) for each in (V6E, V5P))]
)
def test_the_tower_of_images_compiles_within_the_memory_of_a_few_tiles(topology: str, tiles: int) -> None:
    program = compiled(topology, *published_program("tpu", tiles))
    assert program.memory_analysis().temp_size_in_bytes < 400 << 20


@pytest.mark.parametrize("topology", [V5E, V6E])
@pytest.mark.parametrize("name", CUT_TOWERS)
def test_the_tower_of_a_large_image_compiles_within_its_memory(topology: str, name: str) -> None:
    program = compiled(topology, *cut_program("tpu", name))
    assert program.memory_analysis().temp_size_in_bytes < 400 << 20
