"""A program's key changes with every dependency of the compiled program, and with nothing else."""

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from rekindle.core.device.jax_settings import COMPILED_IN, OVERRIDES, JaxSettings
from rekindle.core.device.programs import key as program_key
from rekindle.core.device.programs.key import ProgramKey, SharedKey, Target
from rekindle.core.models.config import Rope
from tests.unit.stored_programs import MODEL, some_key

OTHER_LAYER = replace(MODEL.layers[0], attention=replace(MODEL.attentions[0], rope=Rope(10001.0)))
SHAPES = {"weights": [jax.ShapeDtypeStruct((4, 3), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.float32)]}
OTHER_VALUES = {
    "jax_explicit_x64_dtypes": "error",
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_matmul_precision": "highest",
    "jax_optimization_level": "O1",
    "jax_exec_time_optimization_effort": 0.5,
    "jax_memory_fitting_level": "O1",
    "jax_memory_fitting_effort": 0.5,
    "jax_embedded_constants_max_bytes": 64,
    "jax_error_checking_behavior_nan": "raise",
    "jax_error_checking_behavior_divide": "raise",
    "jax_error_checking_behavior_oob": "raise",
}


def key(**changes: Any) -> ProgramKey:
    build = SharedKey.of(changes.get("model", MODEL), Target.of(jax.devices()[:1]), JaxSettings.here())
    return ProgramKey.of(build, "decode 4", changes.get("statics", {"max_logprobs": 20}), changes.get("shapes", SHAPES))


def changed(before: ProgramKey) -> set[str]:
    """Return the parts with a change, after a check of the digest: it changes exactly with a part."""
    after = key()
    differences = set(before.explain(after.parts()))
    assert (before.digest != after.digest) == bool(differences)
    return differences


Parts = TypeVar("Parts", ProgramKey, SharedKey, Target)


def alternatives(parts: Parts) -> dict[str, Parts]:
    """Return, by the name of each text field, the parts with a change of the field."""
    names = [field.name for field in fields(parts) if isinstance(getattr(parts, field.name), str)]
    changes: list[dict[str, Any]] = [{name: "new"} for name in names]
    return {name: replace(parts, **change) for name, change in zip(names, changes, strict=True)}


def test_nothing_changed_is_the_same_key() -> None:
    assert key() == key()
    assert key().digest == key().digest
    assert key().explain(key().parts()) == {}


def test_every_part_alone_changes_the_digest_and_is_explained() -> None:
    whole = some_key(0)
    build = whole.build
    variants = alternatives(whole)
    variants |= {name: replace(whole, build=other) for name, other in alternatives(build).items()}
    for name, target in alternatives(build.target).items():
        variants[name] = replace(whole, build=replace(build, target=target))
    assert variants.keys() == whole.parts().keys()
    assert len({variant.digest for variant in (*variants.values(), whole)}) == len(variants) + 1
    for name, variant in variants.items():
        assert variant.explain(whole.parts()) == {name: ("new", whole.parts()[name])}
        assert whole.explain(variant.parts()) == {name: (whole.parts()[name], "new")}


def test_a_part_that_only_one_key_has_is_explained() -> None:
    stored = some_key(0).parts() | {"older": "part"}
    del stored["statics"]
    assert some_key(0).explain(stored) == {"older": ("", "part"), "statics": ("{}", "")}


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("model", {"model": replace(MODEL, layers=MODEL.layers * 2)}),
        ("model", {"model": replace(MODEL, layers=(OTHER_LAYER,) * 3)}),
        ("statics", {"statics": {"max_logprobs": 21}}),
        ("arguments", {"shapes": {"weights": SHAPES["weights"][::-1]}}),
        ("arguments", {"shapes": {"weights": tuple(SHAPES["weights"])}}),
        ("arguments", {"shapes": {"weights": [SHAPES["weights"][0], jax.ShapeDtypeStruct((5,), jnp.float32)]}}),
        ("arguments", {"shapes": {"weights": [SHAPES["weights"][0], jax.ShapeDtypeStruct((4,), jnp.bfloat16)]}}),
        (
            "arguments",
            {"shapes": {"weights": [SHAPES["weights"][0], jax.ShapeDtypeStruct((4,), jnp.float32, weak_type=True)]}},
        ),
    ],
)
def test_what_a_program_is_made_of_is_in_its_key(part: str, changes: dict[str, Any]) -> None:
    assert set(key().explain(key(**changes).parts())) == {part}


def test_where_arguments_are_is_in_the_key() -> None:
    there = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(jax.devices()[0])), SHAPES
    )
    assert set(key().explain(key(shapes=there).parts())) == {"shardings"}


def test_arrays_and_their_shapes_have_one_key() -> None:
    arrays = {"x": np.zeros((2, 3), np.int32), "y": np.int32(0)}
    shapes = {"x": jax.ShapeDtypeStruct((2, 3), jnp.int32), "y": jax.ShapeDtypeStruct((), jnp.int32)}
    assert key(shapes=arrays) == key(shapes=shapes)


@pytest.mark.parametrize("name", [name for name in COMPILED_IN if name in jax.config.values and name not in OVERRIDES])
def test_what_jax_is_told_is_in_the_key(name: str) -> None:
    before, value = key(), jax.config.values[name]
    try:
        jax.config.update(name, OTHER_VALUES.get(name, not value))
        assert changed(before) == {"jax_config"}
    finally:
        jax.config.update(name, value)
    assert changed(before) == set()


def test_a_setting_that_is_off_is_one_that_is_not_there_yet() -> None:
    """JAX 0.7.2 has the settings of Pallas only after its import."""
    here, target = JaxSettings.here(), Target.of(jax.devices()[:1])
    values = {name: None if value is False else value for name, value in here.values.items()}
    assert values != here.values
    assert SharedKey.of(MODEL, target, replace(here, values=values)) == SharedKey.of(MODEL, target, here)


def test_flags_of_the_compiler_are_in_the_key_except_those_that_only_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    before = key()
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x --xla_cpu_enable_fast_math=true  --xla_dump_hlo_as_text")
    assert changed(before) == set()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert changed(before) == {"xla_flags"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_enable_async_all_gather=true")
    assert changed(before) == {"xla_flags"}


def test_flags_that_are_in_a_file_are_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA reads the file of the variable's value, unless the value begins with a dash."""
    file = tmp_path / "flags"
    monkeypatch.setenv("XLA_FLAGS", str(file))
    file.write_text("--xla_cpu_enable_fast_math=true")
    before = key()
    file.write_text("--xla_cpu_enable_fast_math=true\n--xla_dump_to=/tmp/x")
    assert changed(before) == set()
    file.write_text("--xla_cpu_enable_fast_math=false")
    assert changed(before) == {"xla_flags"}
    file.unlink()
    assert changed(before) == {"xla_flags"}


@pytest.mark.parametrize("package", program_key.PACKAGES)
def test_versions_of_packages_are_in_the_key(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = key(), metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.0" if name == package else version(name))
    program_key._version.cache_clear()
    assert changed(before) == {"packages"}
    monkeypatch.undo()
    program_key._version.cache_clear()
    assert changed(before) == set()


def test_the_version_of_python_is_in_the_key_up_to_the_minor(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = key(), sys.version_info
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=now.major, minor=now.minor, micro=99))
    assert changed(before) == set()
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=now.major, minor=now.minor + 1, micro=now.micro))
    assert changed(before) == {"python"}


@dataclass(frozen=True)
class FakeClient:
    platform_version: str = "1"
    devices: int = 4

    def device_count(self) -> int:
        return self.devices


@dataclass(frozen=True)
class FakeDevice:
    id: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5e"
    process_index: int = 0
    coords: tuple[int, ...] = (0, 0, 0)
    core_on_chip: int = 0
    client: FakeClient = FakeClient()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("platform", {"platform": "gpu"}),
        ("platform_version", {"client": FakeClient(platform_version="2")}),
        ("device_kind", {"device_kind": "TPU v6e"}),
        ("topology", {"id": 1}),
        ("topology", {"process_index": 1}),
        ("topology", {"coords": (1, 0, 0)}),
        ("topology", {"core_on_chip": 1}),
        ("topology", {"client": FakeClient(devices=8)}),
    ],
)
def test_each_property_of_a_device_is_in_the_key(part: str, change: dict[str, Any]) -> None:
    of: Callable[[list[Any]], Target] = Target.of
    before, after = of([FakeDevice()]), of([replace(FakeDevice(), **change)])
    assert part in {field.name for field in fields(Target) if getattr(before, field.name) != getattr(after, field.name)}


def test_the_order_of_devices_is_in_the_key_and_which_of_several_processes_this_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of: Callable[[list[Any]], Target] = Target.of
    one, two = FakeDevice(), FakeDevice(id=1, coords=(1, 0, 0))
    assert of([one, two]).topology != of([two, one]).topology
    assert "in process" not in of([one, two]).topology
    shared = [one, replace(two, process_index=1)]
    first = of(shared).topology
    assert first.endswith(" of 4, in process 0")
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert of(shared).topology == first.replace("in process 0", "in process 1")


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_parts_of_a_program_of_several_processes_have_a_key_each(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of: Callable[[list[Any]], Target] = Target.of
    own, other = (FakeDevice(index, platform, process_index=index) for index in (0, 1))
    alone, keys = set[Target](), set[Target]()
    for index in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        keys.add(of([own, other]))
        alone.add(of([own]))
    assert len(keys) == 2
    assert len(alone) == 1, "a program of one process is whole"


@dataclass(frozen=True)
class FakeGpu(FakeDevice):
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    compute_capability: str = "9.0"


def test_an_attached_chip_and_the_description_of_it_are_one_target() -> None:
    """Ignore the slice: attached chips report even a single one."""

    @dataclass(frozen=True)
    class Attached(FakeDevice):
        slice_index: int = 0

    of: Callable[[list[Any]], Target] = Target.of
    assert of([Attached()]) == of([FakeDevice()])
    assert of([Attached(slice_index=1)]) != of([FakeDevice()])


@pytest.mark.parametrize(
    "attached",
    [
        {"client": FakeClient(platform_version="PJRT C API\ncuda 13020")},
        {"client": FakeClient(devices=8)},
        {"coords": (1, 2, 3)},
    ],
)
def test_what_only_an_attached_gpu_says_is_not_in_the_key(attached: dict[str, Any]) -> None:
    described = FakeGpu(client=FakeClient("PJRT C API\nNVIDIA H100 80GB HBM3"))
    of: Callable[[list[Any]], Target] = Target.of
    assert of([replace(described, **attached)]) == of([described])


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("device_kind", {"device_kind": "NVIDIA A100-SXM4-40GB"}),
        ("device_kind", {"compute_capability": "8.0"}),
        ("topology", {"id": 1}),
        ("topology", {"process_index": 1}),
    ],
)
def test_each_property_of_a_gpu_is_in_the_key(part: str, change: dict[str, Any]) -> None:
    of: Callable[[list[Any]], Target] = Target.of
    before, after = of([FakeGpu()]), of([replace(FakeGpu(), **change)])
    assert {field.name for field in fields(Target) if getattr(before, field.name) != getattr(after, field.name)} == {
        part
    }


def test_the_order_of_the_devices_is_in_the_key() -> None:
    first, second = FakeDevice(0), FakeDevice(1)
    of: Callable[[list[Any]], Target] = Target.of
    assert len({of(devices) for devices in ([first], [second], [first, second], [second, first])}) == 4


def test_plugins_are_in_the_key_of_their_own_platform_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(dist=SimpleNamespace(name="some-plugin"))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [plugin])
    monkeypatch.setattr(program_key, "_version", lambda name: {"some-plugin": "7", "libtpu": "8"}.get(name, ""))
    of: Callable[[list[Any]], Target] = Target.of
    plugins = {name: of([FakeDevice(platform=name)]).plugins for name in ("cpu", "gpu", "tpu")}
    assert plugins == {"cpu": "", "gpu": "some-plugin 7", "tpu": "libtpu 8"}


@pytest.mark.parametrize("name", program_key.THREAD_VARIABLES)
def test_the_threads_that_the_compiler_reckons_with_are_in_the_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv(name, "7")
    assert changed(before) == {"host_cpu"}


INTEL = (
    "processor: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 143\ncpu MHz\t: 1.0\nflags\t: fpu sse avx\n\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "old", "new"),
    [
        (INTEL, "avx", "avx2"),
        (INTEL, "143", "144"),
        (INTEL, "Genuine", "Other"),
        (ARM, "asimd", "asimd sve"),
        (ARM, "0xd0c", "0xd4f"),
    ],
)
def test_the_model_and_the_features_of_the_cpu_are_in_the_key(cpuinfo: str, old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    before = program_key.cpu_model(path)
    path.write_text(cpuinfo.replace(old, new))
    assert program_key.cpu_model(path) != before
    path.write_text(cpuinfo.replace("1.0", "2.0").replace("fpu sse avx", "avx fpu sse") + "another core\n")
    assert program_key.cpu_model(path) == before, "neither the clock, the other cores nor the order matter"


def test_where_there_is_no_cpuinfo_python_says_what_it_knows(tmp_path: Path) -> None:
    assert program_key.cpu_model(tmp_path / "missing") == platform.processor()
