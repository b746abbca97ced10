"""The pool of pages takes the memory left by weights and the largest step; a model too large is refused."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.assembly import devices
from rekindle.assembly.loading import budget, choosing, planning
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.planning import plan
from rekindle.assembly.weights.load import load_weights
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs, temporary_bytes
from rekindle.core.errors import ConfigError, ModelTooLarge, NotRestored
from rekindle.core.store.directory import cache_dir
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings, SettingsOptions
from tests.compilations import programs_of

CPU = jax.devices("cpu")[0]
HERE = Place((CPU,))
MB = 1_000_000
Give = Callable[..., None]


class Accelerator:
    """A CPU that passes for a device with memory of its own."""

    platform = "gpu"
    id = 0

    def __str__(self) -> str:
        return "gpu:0"


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Return a function to set the memory of devices."""
    return lambda memory: monkeypatch.setattr(budget, "memory_of", lambda device: memory)


@pytest.fixture(scope="module")
def model(families: Path) -> Checkpoint:
    return open_checkpoint(families / "llama-tied")


def test_the_default_pool_on_a_cpu_is_a_gibibyte_or_a_quarter_of_what_is_left(model: Checkpoint, give: Give) -> None:
    wide = replace(model, config=replace(model.config, max_context=1 << 20))
    for memory, most in ((64 << 30, 1 << 30), (2 << 30, 1 << 29), (1 << 30, 1 << 28)):
        give(memory)
        blueprint = Blueprint.of(wide, Settings(), HERE)
        pool = (blueprint.limits.pool.num_pages - 1) * blueprint.limits.pool.page_bytes
        assert 0.9 * most - 10 * MB < pool <= most


def test_two_starts_have_the_same_pool_though_the_memory_differs_a_little(model: Checkpoint, give: Give) -> None:
    wide, pages = replace(model, config=replace(model.config, max_context=1 << 20)), set()
    for more in range(0, 128 * MB, 4 * MB):
        give((1 << 30) + more)
        pages.add(Blueprint.of(wide, Settings(), HERE).limits.pool.num_pages)
    assert len(pages) <= 6


def test_a_device_of_its_own_gives_the_pool_what_is_left_but_for_staged_pages() -> None:
    device_budget = budget.Budget(
        place=Place((Accelerator(),)),
        memory=16 << 30,
        weights=4 << 30,
        slots=0,
        workspace=1 << 30,
        measured=True,
    )
    assert 0.93 * (10 << 30) < device_budget.pool(prefix_cache=False) <= 10 << 30
    assert 0.93 * (8 << 30) < device_budget.pool(prefix_cache=True) <= 8 << 30


def test_the_same_bytes_hold_more_positions_of_int8(families: Path) -> None:
    """Count the four bytes of each scale too."""
    checkpoint = open_checkpoint(families / "llama-tied")
    (sides, heads, head_dim), *others = [attention.entry_shape for attention in checkpoint.config.paged]
    settings = Settings(pool_bytes=1 << 20, max_running=1000)
    whole, small = (
        Blueprint.of(checkpoint, replace(settings, kv_dtype=kv_dtype), HERE).limits.pool for kv_dtype in (None, "int8")
    )
    assert small.page_bytes == (1 + len(others)) * sides * heads * settings.page_size * (head_dim + 4)
    assert small.num_pages == (1 << 20) // small.page_bytes
    assert small.tokens >= 1.5 * whole.tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "mixtral", "gemma2"])
def test_the_weights_are_known_before_they_are_loaded(family: str, dtype: Any, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    blueprint = Blueprint.of(checkpoint, Settings(dtype=dtype), HERE)
    weights = load_weights(
        checkpoint.config, checkpoint.tensors, blueprint.form, implementation=blueprint.programs.shapes.implementation
    )
    assert blueprint.budget.weights == sum(array.nbytes for array in weights)


@pytest.mark.parametrize("family", ["llama-tied", pytest.param("mixtral", marks=pytest.mark.wide)])
def test_the_bound_of_a_step_is_above_what_the_compiler_says(family: str, families: Path) -> None:
    settings = Settings(max_prefill_tokens=64, prefill_chunk=64, max_running=8, num_pages=9)
    blueprint = Blueprint.of(open_checkpoint(families / family), settings, HERE)
    measured = temporary_bytes(blueprint.programs.compile(blueprint.largest_step))
    assert measured is not None
    assert 0 < measured <= blueprint.budget.workspace


def test_a_model_that_cannot_fit_is_refused_with_the_numbers_before_it_is_loaded(
    families: Path, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.assembly.building.fill", lambda *_: pytest.fail("it was loaded"))
    give(1 * MB)
    message = (
        r"llama-tied does not fit on .*: its weights take 649 kB, the largest step [\d.]+ MB, and the smallest pool of "
        r"pages [\d.]+ kB, [\d.]+ MB together, and the device has 1 MB in all"
    )
    with pytest.raises(ModelTooLarge, match=message):
        rekindle.open_sync(families / "llama-tied", progress=False)


def test_a_pool_that_does_not_fit_beside_the_weights_is_refused_with_the_largest_that_does(
    families: Path, give: Give
) -> None:
    give(100 * MB)
    path = families / "llama-tied"
    with pytest.raises(ConfigError, match=r"in addition to 649 kB of weights .* lower pool_bytes, or num_pages"):
        rekindle.open_sync(path, progress=False, pool_bytes=101 * MB, precompile="lazy", restore="off")
    blueprint = Blueprint.of(open_checkpoint(path), Settings(pool_bytes=60 * MB), HERE)
    blueprint.budget.check(blueprint.limits, "it")


def test_pool_bytes_are_whole_pages_and_instead_of_num_pages(model: Checkpoint) -> None:
    page = Blueprint.of(model, Settings(num_pages=5), HERE).limits.pool.page_bytes
    blueprint = Blueprint.of(model, Settings(pool_bytes=7 * page + page // 2), HERE)
    assert blueprint.limits.pool.num_pages == 7
    resolved = blueprint.resolve(Settings(pool_bytes=7 * page))
    assert (resolved.num_pages, resolved.pool_bytes) == (7, None)
    assert (
        Blueprint.of(model, Settings(pool_bytes=2 * page), HERE).resolve(Settings(pool_bytes=2 * page)).num_pages == 2
    )
    with pytest.raises(ConfigError, match="pool_bytes must be at least"):
        Blueprint.of(model, Settings(pool_bytes=2 * page - 1), HERE)
    with pytest.raises(ConfigError, match=rf"pool_bytes must be at least {2 * page:,} for this model, .* got 2"):
        Blueprint.of(model, Settings(pool_bytes=2), HERE)
    with pytest.raises(ConfigError, match="num_pages and pool_bytes both say how large"):
        Settings(num_pages=7, pool_bytes=7 * page)


@pytest.fixture
def measured(give: Give, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the CPU pass for a device with memory of its own, and return the keys of the programs for measurements."""
    compiled: list[Any] = []
    make = Programs.compile

    def recording_compile(programs: Programs, key: Any, arguments: Any = None) -> Any:
        compiled.append(key)
        return make(programs, key, arguments)

    give(200 * MB)
    monkeypatch.setattr(Programs, "compile", recording_compile)
    monkeypatch.setattr(planning, "shares_memory", lambda device: False)
    monkeypatch.setattr(budget, "shares_memory", lambda device: False)
    return compiled


SMALL = Settings(max_prefill_tokens=64, prefill_chunk=64, max_running=8)
FEW: SettingsOptions = {
    "num_pages": 9,
    "precompile": "all",
    "max_prefill_tokens": 16,
    "prefill_chunk": 16,
    "max_running": 2,
    "decode_buckets": (2,),
}


@pytest.mark.wide
def test_the_largest_step_is_measured_once_and_the_number_is_kept(model: Checkpoint, measured: list[Any]) -> None:
    first = plan(model, SMALL, HERE, cache_dir())
    assert len(measured) == 1
    again = plan(model, SMALL, HERE, cache_dir())
    assert len(measured) == 1, "its number is stored"
    assert first.budget == again.budget
    assert first.limits == again.limits
    assert first.budget.measured
    assert 0 < first.budget.workspace < plan(model, SMALL, HERE, None, compiles=False).budget.workspace
    assert len(measured) == 1


def test_nothing_is_measured_where_the_pool_is_given(model: Checkpoint, measured: list[Any]) -> None:
    for settings in (replace(SMALL, num_pages=9), replace(SMALL, pool_bytes=10 * MB)):
        assert not plan(model, settings, HERE, None).budget.measured
    assert measured == []


def test_nothing_is_compiled_to_measure_where_that_is_forbidden_or_nothing_can_fit(
    model: Checkpoint, measured: list[Any], give: Give
) -> None:
    with pytest.raises(NotRestored):
        plan(model, replace(SMALL, restore="require", max_logprobs=3), HERE, cache_dir())
    give(MB // 2)
    with pytest.raises(ModelTooLarge):
        plan(model, SMALL, HERE, None)
    assert measured == []


@pytest.mark.wide
def test_a_restart_finds_its_programs_though_the_pool_was_sized_by_measuring(
    families: Path, measured: list[Any], give: Give
) -> None:
    give(4 * MB)
    settings: SettingsOptions = {**FEW, "num_pages": None, "max_running": 16, "decode_buckets": (16,)}
    pages = []
    for restore in ("auto", "require"):
        options: SettingsOptions = {**settings, "restore": restore}
        with rekindle.open_sync(families / "llama-tied", progress=False, **options) as session:
            limits = session._engine.facts.limits
            pages.append(limits.pool.num_pages)
            assert session.generate_sync(token_ids=[1, 2], max_tokens=2).token_ids
            assert limits.pool.num_pages < 1 + 16 * limits.pool.pages_per_request, "memory is what bounds it"
            compiled = session.stats.compilations
            session._engine.facts.programs.stored()[0].result()
        assert bool(compiled) == (restore == "auto")
    assert pages[0] == pages[1]


def test_the_memory_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "memory_limit", lambda: None)
    whole = devices.memory_of(CPU)
    assert whole is not None
    for limit, memory in ((MB, MB), (1 << 62, whole)):
        monkeypatch.setattr(devices, "memory_limit", lambda limit=limit: limit)
        assert devices.memory_of(CPU) == memory


@pytest.mark.wide
def test_info_and_a_session_say_how_memory_is_spent(families: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = families / "llama-tied"
    assert main(["info", str(path)]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    facts = {name.strip(): value.strip() for name, value in rows.items()}
    assert facts["weights"] == "649 kB"
    assert "a token of context" in facts["keys, values"]
    assert " of " in facts["together"]
    assert facts["copies"].startswith("at most 1.07 GB in host memory and 4.29 GB on disk")
    with rekindle.open_sync(path, progress=False, **FEW) as session:
        memory = session.memory
        assert size_text(memory.weights) == facts["weights"]
        assert memory.tokens == 8 * 64
        assert memory.pool == 9 * 64 * memory.token
        assert memory.workspace == programs_of(session._engine.facts).executables[0].workspace()


@dataclass(frozen=True)
class Gpu:
    """A GPU that tells the memory of JAX's allocator.

    Attributes:
        limit, pool: bytes that it may have at most, and that it has reserved.
    """

    limit: int
    pool: int | None
    platform: str = "gpu"

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.limit} | ({} if self.pool is None else {"pool_bytes": self.pool})


@pytest.mark.parametrize(
    ("gpu", "variables", "memory"),
    [
        (Gpu(12 * MB, None), {}, 12 * MB),
        (Gpu(12 * MB, 12 * MB), {}, 12 * MB),
        (Gpu(16 * MB, 12 * MB), {}, 12 * MB),  # the pool may grow
        (Gpu(16 * MB, 8 * MB), {"XLA_CLIENT_MEM_FRACTION": "0.5"}, 8 * MB),
        (Gpu(12 * MB, MB), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 12 * MB),
        (Gpu(12 * MB, MB // 2), {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, 12 * MB),
        (Gpu(12 * MB, 0), {}, 12 * MB),
        (Gpu(12 * MB, MB, "tpu"), {}, 12 * MB),
    ],
)
def test_the_plan_keeps_to_the_share_that_jax_has_reserved(
    gpu: Any, variables: dict[str, str], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREALLOCATE", "ALLOCATOR"):
        monkeypatch.delenv(f"XLA_PYTHON_CLIENT_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    devices._reserved.cache_clear()
    assert devices.memory_of(gpu) == memory


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [
        (4_800_000, 'Open it with dtype="bfloat16"'),
        (1_000_000, 'Open it with quantize="int4", kv_dtype="int8", max_prefill_tokens=64'),
        (2 * MB, "Open it with max_prefill_tokens=64, prefill_chunk=64, max_running=4"),
        (MB // 8, "No setting makes it fit here"),
    ],
)
def test_what_makes_a_model_fit_is_told_with_the_refusal(
    memory: int, remedy: str, families: Path, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.assembly.building.fill", lambda *_: pytest.fail("it was loaded"))
    give(memory)
    with pytest.raises(ModelTooLarge) as refusal:
        rekindle.open_sync(families / "llama-tied", progress=False)
    assert f"\n- {remedy}" in str(refusal.value)
    assert 'the largest that `rekindle.open("auto")` knows to fit here' in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "name", "model"),
    [
        ("Tesla T4", "T4", "Qwen3-4B"),
        ("TPU v5 lite", "v5e-1", "Qwen3-4B"),
        ("NVIDIA L4", "L4", "Qwen3-4B"),
        ("NVIDIA A100-SXM4-40GB", "A100", "Qwen3-8B"),
        ("TPU v6 lite", "v6e-1", "Qwen3-14B"),
    ],
)
def test_machines_of_notebooks_are_known_by_name(
    kind: str, name: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the choice of `auto` on a device that does not tell its memory, and the table for its name."""
    device = SimpleNamespace(device_kind=kind, platform="gpu", memory_stats=lambda: None)
    monkeypatch.setattr(choosing, "device_of", lambda spec: device)
    suitable, _ = choosing.suitable_models(choosing.candidates(cpu=False), choosing.MachinePart.of(Settings()))
    assert suitable[-1].model == f"Qwen/{model}"
    assert main(["models", "qwen3", "--machine", name.lower()]) == 0
    table = capsys.readouterr().out
    assert table.startswith(f"1 {name}: ")
    assert f"* Qwen/{model} " in table


def test_a_machine_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--machine", "T5"]) == 1
    assert "machine must be one of T4, v5e-1, L4, A100, v6e-1, A100-80GB; got 'T5'" in capsys.readouterr().err
