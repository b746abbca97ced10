"""The real CUDA compiler takes every GPU kernel, for absent GPUs."""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding

from rekindle.assembly.loading.kinds import quantized_kinds
from rekindle.cli.models.targets import GPUS, description_of
from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.programs.lowering import COMMANDS, GRAPHS
from rekindle.core.device.state import empty_pages, empty_slots
from rekindle.core.device.step import step
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import Quantize, WeightForm
from rekindle_kernels import api
from rekindle_kernels.gpu.target import Target, tracing_for
from rekindle_kernels.gpu.tuning import Tuning, tuning
from tests.device.widths import LLAMA_8B, config_of
from tests.kernels import narrow_programs, state_programs
from tests.kernels.warpgroups import HOPPER as HOPPER_KIND
from tests.kernels.warpgroups import with_warpgroups
from tests.published import CONFIGS, published
from tests.vision import CUT_TOWERS, cut_program, published_program

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not any(map(_installed, PLUGINS)), reason="needs the CUDA plugin: pip install 'jax[cuda13]', no GPU"
)

GPUS_BY_KIND = {gpu.kind: gpu for gpu in (GPUS["h100"], GPUS["a100-80gb"], GPUS["l4"])}
LLAMA_3_8B = config_of(LLAMA_8B)
INT32, BFLOAT16 = jnp.dtype(jnp.int32), jnp.dtype(jnp.bfloat16)
PLAIN = WeightForm(BFLOAT16)

Shape = jax.ShapeDtypeStruct


def compiled(
    device_kind: str,
    function: Callable[..., Any],
    *shapes: Any,
    donated: tuple[int, ...] = (),
    trial: Tuning | None = None,
    options: dict[str, str | bool] | None = None,
) -> Any:
    """Compile a program for one GPU of this kind."""
    text = description_of(GPUS_BY_KIND[device_kind], cuda=13)
    (device,) = get_topology_desc(platform="cuda", topology="1x1x1", target_config=text).devices
    with tracing_for(Target(device_kind, trial=trial)), jax.default_device(device):
        jitted = jax.jit(function, in_shardings=SingleDeviceSharding(device), donate_argnums=donated)
        return jitted.lower(*shapes).compile(compiler_options=options)


def pool(head_dim: int, dtype: str, page_size: int = 16, pages: int = 513) -> Shape:
    """Return the shape of a pool."""
    shape = (pages, 2, 8, page_size, head_dim)
    pages_form: Shape = jax.eval_shape(partial(api.empty, shape, jnp.dtype(dtype), implementation="gpu"))
    return pages_form


@pytest.fixture(params=GPUS_BY_KIND)
def device_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


CASES = [
    *((head_dim, "bfloat16") for head_dim in (64, 80, 96, 128, 256)), (128, "float32"), (64, "int8"), (128, "int8"),
    (128, "float16"),
]  # fmt: skip


@pytest.mark.parametrize(("head_dim", "dtype"), CASES)
@pytest.mark.parametrize(("rows", "window", "soft_cap"), [(32, None, None), (1, 512, 30.0)])
def test_attention_of_rows_compiles(
    device_kind: str, head_dim: int, dtype: str, rows: int, window: int | None, soft_cap: float | None
) -> None:
    function = partial(api.attend_rows, scale=0.125, window=window, soft_cap=soft_cap, implementation="gpu")
    q, table = Shape((rows, 32, head_dim), jnp.float32), Shape((rows, 256), INT32)
    program = compiled(device_kind, function, q, pool(head_dim, dtype), table, Shape((rows,), INT32))
    assert "attend_rows" in program.as_text()


@pytest.mark.parametrize(("head_dim", "dtype"), CASES)
@pytest.mark.parametrize(("group", "window", "soft_cap"), [(4, None, None), (3, 512, 30.0)])
def test_attention_of_blocks_compiles(
    device_kind: str, head_dim: int, dtype: str, group: int, window: int | None, soft_cap: float | None
) -> None:
    function = partial(api.attend_blocks, scale=0.125, window=window, soft_cap=soft_cap, implementation="gpu")
    q, blocks = Shape((128, 16, 8 * group, head_dim), jnp.float32), Shape((128,), INT32)
    program = compiled(device_kind, function, q, pool(head_dim, dtype), Shape((9, 256), INT32), blocks, blocks)
    assert "attend_blocks" in program.as_text()


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="needs JAX 0.10")
@pytest.mark.parametrize(
    ("head_dim", "group", "page_size", "options", "has_tiles"),
    [
        (64, 4, 16, {}, True),
        (128, 7, 64, {}, True),
        (128, 1, 16, {}, False),
        (128, 4, 16, {"window": 512}, True),
        (128, 4, 16, {"soft_cap": 30.0}, True),
        (256, 2, 16, {}, True),
    ],
)
def test_attention_of_blocks_by_warpgroups_compiles(
    head_dim: int, group: int, page_size: int, options: dict[str, Any], has_tiles: bool
) -> None:
    """Compile the kernel. Calls with options, with wider heads, or without tiles for it have the other kernel."""
    q, blocks = Shape((128, 16, 8 * group, head_dim), jnp.float32), Shape((128,), INT32)
    shapes = (q, pool(head_dim, "bfloat16", page_size), Shape((9, 256), INT32), blocks, blocks)
    trial = with_warpgroups(HOPPER_KIND) if has_tiles else tuning("NVIDIA A100")
    function = partial(api.attend_blocks, scale=0.125, **options, implementation="gpu")
    text = compiled(HOPPER_KIND, function, *shapes, trial=trial).as_text()
    assert ("mosaic_gpu" in text) == (has_tiles and not options and head_dim <= 128)


@pytest.mark.parametrize(("head_dim", "group", "window"), [(256, 2, 512), (128, 4, None)])
def test_attention_to_later_tokens_compiles(device_kind: str, head_dim: int, group: int, window: int | None) -> None:
    function = partial(api.attend_blocks, scale=0.125, window=window, implementation="gpu")
    q, blocks = Shape((128, 16, 8 * group, head_dim), jnp.float32), Shape((128,), INT32)
    pages, until = pool(head_dim, "bfloat16"), Shape((128, 16), INT32)
    program = compiled(device_kind, function, q, pages, Shape((9, 256), INT32), blocks, blocks, until)
    assert "attend_blocks" in program.as_text()


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_writing_compiles_in_place(device_kind: str, dtype: str, tokens: int) -> None:
    pages, places = pool(128, dtype), Shape((32,), INT32)
    function = partial(api.write, implementation="gpu")
    kv = Shape((32, 2, 8, tokens, 128), jnp.float32)
    program = compiled(device_kind, function, pages, kv, places, places, donated=(0,))
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes == pages.size * pages.dtype.itemsize
    assert memory.temp_size_in_bytes < pages.size


def test_a_page_is_copied_in_place(device_kind: str) -> None:
    pages, page_id = pool(128, "bfloat16"), Shape((), INT32)
    content = Shape(pages.shape[1:], pages.dtype)
    writer = compiled(device_kind, partial(api.write_page, implementation="gpu"), pages, page_id, content, donated=(0,))
    assert writer.memory_analysis().alias_size_in_bytes == pages.size * pages.dtype.itemsize
    reader = compiled(device_kind, partial(api.read_page, implementation="gpu"), pages, page_id)
    assert reader.memory_analysis().temp_size_in_bytes < pages.size


@pytest.mark.parametrize("name", state_programs.GPU)
def test_states_are_updated_in_place(device_kind: str, name: str) -> None:
    program = state_programs.GPU[name]
    memory = compiled(device_kind, program.function, *program.shapes, donated=(program.donated,)).memory_analysis()
    assert memory.alias_size_in_bytes == program.state_bytes
    assert memory.temp_size_in_bytes < program.state_bytes


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket(512, 8),
        Bucket(0, 8),
        *(pytest.param(each, marks=pytest.mark.deep) for each in (Bucket(2048, 0), Bucket(0, 32))),
    ],
)
def test_the_step_of_a_llama_3_8b_shape_compiles_and_updates_its_pages_in_place(bucket: Bucket) -> None:
    """Compile two of its layers, because the others are the same."""
    _check_step(replace(LLAMA_3_8B, layers=LLAMA_3_8B.layers[:2]), bucket)


def launches_of(bucket: Bucket, folder: Path) -> list[str]:
    """Return XLA's list of launches of a step, which it dumps; those within others are indented."""
    options: dict[str, str | bool] = {"xla_dump_to": str(folder), GRAPHS: COMMANDS}
    _check_step(replace(LLAMA_3_8B, layers=LLAMA_3_8B.layers[:2]), bucket, options=options)
    (dumped,) = folder.glob("*thunk_sequence_after_thunk_passes.txt")
    return dumped.read_text().splitlines()


def test_a_decode_step_is_one_cuda_graph_for_which_the_host_never_waits(tmp_path: Path) -> None:
    """Find the choice of tokens, with its conditions, in the graph too."""
    launches = launches_of(Bucket(0, 8), tmp_path)
    assert [launch.split()[1] for launch in launches if re.match(r"\d", launch)] == ["kCommandBuffer"]
    kernels = Counter(re.findall(r"\] (write|attend_rows|join_rows) ", "\n".join(launches)))
    assert kernels == {"write": 2, "attend_rows": 2, "join_rows": 2}


def test_the_host_waits_once_in_a_step_of_a_prompt_for_no_log_probabilities(tmp_path: Path) -> None:
    outer = [launch.split()[1] for launch in launches_of(Bucket(256, 0), tmp_path) if re.match(r"\d", launch)]
    assert outer.count("kConditional") == 1
    assert "kWhile" not in outer


@pytest.mark.parametrize("bucket", [Bucket(256, 0), pytest.param(Bucket(0, 1), marks=pytest.mark.deep)])
@pytest.mark.parametrize("model", CONFIGS)
def test_a_step_with_each_kind_of_layer_compiles_at_its_true_widths(model: str, bucket: Bucket) -> None:
    _check_step(published(model), bucket)


@pytest.mark.parametrize("name", narrow_programs.GPU)
def test_codes_are_multiplied_without_widening_them_in_memory(name: str) -> None:
    case = narrow_programs.GPU[name]
    program = compiled(HOPPER_KIND, case.function, *case.shapes)
    assert program.memory_analysis().temp_size_in_bytes <= case.temporary
    assert not narrow_programs.wide_arrays(program.as_text())


@pytest.mark.parametrize("quantize", ["int4", pytest.param("int8", marks=pytest.mark.deep)])
def test_a_step_with_quantized_weights_widens_none_of_them(quantize: Quantize) -> None:
    config = replace(LLAMA_3_8B, layers=LLAMA_3_8B.layers[:2])
    kinds = quantized_kinds(config, quantize, [WHOLE], is_accelerator=True)
    memory = _check_step(config, Bucket(0, 8), WeightForm(BFLOAT16, kinds, "bfloat16", quantize))
    assert (
        memory.temp_size_in_bytes < config.hidden_size * 14336
    )  # half of one matrix in bfloat16, of two in each layer


@pytest.mark.parametrize("tiles", [1, 17])
def test_the_tower_of_images_compiles_within_the_memory_of_a_few_tiles(tiles: int) -> None:
    program = compiled(HOPPER_KIND, *published_program("gpu", tiles))
    assert program.memory_analysis().temp_size_in_bytes < 400 << 20


@pytest.mark.parametrize("name", CUT_TOWERS)
def test_the_tower_of_a_large_image_compiles_within_its_memory(name: str) -> None:
    program = compiled(HOPPER_KIND, *cut_program("gpu", name))
    assert program.memory_analysis().temp_size_in_bytes < 400 << 20


def _check_step(
    config: ModelConfig, bucket: Bucket, weights: WeightForm = PLAIN, options: dict[str, str | bool] | None = None
) -> Any:
    """Compile the step of a bucket; XLA serves the rest, as in a session."""
    dtype = weights.dtype
    implementation = api.choose("gpu", config.pools(2049, 16), dtype).implementation
    abstract = abstract_decoder(config, weights, implementation)
    pages = jax.eval_shape(lambda: empty_pages(config, 2049, 16, dtype, implementation))
    slots = jax.eval_shape(lambda: empty_slots(32, 512, config.vocab_size))
    packed = InputLayout.of(bucket, slots).padding()

    def run(pages: Any, slots: Any, weights: Any, packed: Any) -> Any:
        return step(abstract.with_weights(weights), pages, slots, packed, bucket, 5)

    shape = Shape(packed.shape, packed.dtype)
    shapes = (pages, slots, list(abstract.forms), shape)
    program = compiled(HOPPER_KIND, run, *shapes, donated=(0, 1), options=options)
    pool_bytes = sum(int(np.prod(layer.shape)) * layer.dtype.itemsize for layer in pages)
    assert program.memory_analysis().alias_size_in_bytes >= pool_bytes
    if implementation == "gpu":
        text = program.as_text()
        assert ("attend_blocks" in text, "attend_rows" in text) == (bucket.prefill_tokens > 0, bucket.decode_rows > 0)
    return program.memory_analysis()
