"""A target is known by its name, or refused with advice."""

import os
import re
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax._src import cloud_tpu_init
from jax.experimental import topologies

from rekindle.cli.models import targets
from rekindle.cli.models.targets import GPUS, devices_of, known_targets
from rekindle.core.errors import ConfigError

JAX_NAMES = ("jax_platforms", "jax_pjrt_client_create_options")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """Record the descriptions requested of jax on a machine with both compilers, and set everything back."""
    calls: list[dict[str, str]] = []

    def describe(topology: str = "", platform: str = "", **options: str) -> SimpleNamespace:
        calls.append({"topology": topology, "platform": platform} | options)
        return SimpleNamespace(devices=[f"first of {topology}"])

    before = {name: jax.config.values[name] for name in JAX_NAMES if name in jax.config.values}
    monkeypatch.setattr(os, "environ", {"LIBTPU_INIT_ARGS": "--mine=1"})
    monkeypatch.setattr(cloud_tpu_init, "running_in_cloud_tpu_vm", False)
    monkeypatch.setattr(targets, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [SimpleNamespace(name="xla_cuda13")])
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    yield calls
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("target", known_targets())
def test_every_known_target_is_described_to_its_own_compiler(target: str, requests: list[dict[str, Any]]) -> None:
    assert len(devices_of(target)) == 1
    platform, _, rest = target.partition(":")
    assert requests[0]["platform"] == platform
    if platform == "tpu":
        chips = [2, 2, 1] if rest == "v5p:2x2x1" else [1, 1, 1]
        assert requests == [{"platform": "tpu", "topology": rest, "chips_per_host_bounds": chips}]
    else:
        assert requests[0]["topology"] == "1x1x1"
        assert GPUS[rest].kind in requests[0]["target_config"]


@pytest.mark.parametrize(
    ("target", "bounds"), [("v5e:2x4", [2, 4, 1]), ("v6e:2x2", [2, 2, 1]), ("v6e:16x16", None), ("v5p:2x2x2", None)]
)
def test_chips_are_those_of_one_host_if_a_host_can_have_as_many(
    target: str, bounds: list[int] | None, requests: list[dict[str, Any]]
) -> None:
    devices_of(f"tpu:{target}")
    one_host = {} if bounds is None else {"chips_per_host_bounds": bounds}
    assert requests == [{"platform": "tpu", "topology": target, **one_host}]


def test_gpus_are_those_of_one_host(requests: list[dict[str, Any]]) -> None:
    devices_of("cuda:h100:8")
    assert requests[0]["topology"] == "1x1x8"
    assert GPUS["h100"].kind in requests[0]["target_config"]


@pytest.mark.parametrize(
    "target",
    [
        *("", "tpu", "tpu:", "tpu:v9:1x1", "tpu:v5e", "tpu:v5e:", "tpu:v5e:2", "tpu:v5e:1x1x1", "tpu:v5p:2x2"),
        *("tpu:v5e:0x1", "tpu:v5e:-1x1", "tpu:v5e:ax1", "tpu:v5e:1x1:1", "TPU:v5e:1x1"),
        *("cuda", "cuda:", "cuda:h100:0", "cuda:h100:9", "cuda:h100:", "cuda:h100:x", "cuda:NVIDIA", "gpu:h100", "cpu"),
    ],
)
def test_other_names_are_refused_with_those_that_are_known(target: str, requests: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=rf"no target '{re.escape(target)}'; known are tpu:v5e:1x1, .*cuda:h100:8$"):
        devices_of(target)
    assert requests == []


def test_without_libtpu_the_error_says_what_to_install(
    requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tpu:v5e:1x1 needs libtpu: install rekindle-llm\[tpu\]"):
        devices_of("tpu:v5e:1x1")
    monkeypatch.setitem(os.environ, "TPU_LIBRARY_PATH", "/somewhere/libtpu.so")
    with pytest.warns(UserWarning, match="TPU_LIBRARY_PATH"):  # jax warns, because there is no such file
        assert devices_of("tpu:v5e:1x1")


def test_without_the_cuda_plugin_the_error_says_what_to_install(
    requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [SimpleNamespace(name="another")])
    with pytest.raises(ConfigError, match=r"cuda:h100 needs jax's CUDA plugin: install rekindle-llm\[cuda\]"):
        devices_of("cuda:h100")


@pytest.mark.parametrize("target", ["tpu:v5e:3x3", "cuda:h100"])
def test_what_a_compiler_says_against_a_target_is_passed_on(
    target: str, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: not divisible\nand a trace")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(ConfigError, match=rf"no target '{target}': INVALID_ARGUMENT: not divisible$"):
        devices_of(target)


def test_flags_that_jax_sets_where_there_are_chips_are_set_beside_those_of_the_user(
    requests: list[dict[str, Any]],
) -> None:
    """Check this because these flags are in the key of every program."""
    devices_of("tpu:v5e:1x1")
    first, *others = os.environ["LIBTPU_INIT_ARGS"].split()
    assert first == "--mine=1"
    assert [flag.partition("=")[0] for flag in others] == ["--xla_tpu_use_enhanced_launch_barrier"]


@pytest.mark.parametrize("target", ["tpu:v5e:1x1", "cuda:h100"])
def test_the_devices_of_this_machine_are_not_used(target: str, requests: list[dict[str, Any]]) -> None:
    devices_of(target)
    assert jax.config.values["jax_platforms"] == "cpu"


def numbers(description: str) -> dict[str, Any]:
    return dict(re.findall(r'(\w+): ("[^"]*"|\S+)', description))


@pytest.mark.parametrize(("plugin", "cuda"), [("xla_cuda12", "12"), ("xla_cuda13", "13")])
def test_a_gpu_is_described_by_its_own_numbers(
    plugin: str, cuda: str, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [SimpleNamespace(name=plugin)])
    devices_of("cuda:h100")
    devices_of("cuda:a100")
    h100, a100 = (numbers(request["target_config"]) for request in requests)
    differing = {name for name in h100 if h100[name] != a100[name]}
    assert differing == {
        *("device_description_str", "feature_extension", "core_count", "fpus_per_core", "clock_rate_ghz"),
        *("shared_memory_per_core", "shared_memory_per_block_optin", "l2_cache_size", "memory_bandwidth"),
        *("device_memory_size", "major"),
    }
    assert h100["device_description_str"] == '"NVIDIA H100 80GB HBM3"'
    assert (h100["core_count"], a100["core_count"]) == ("132", "108")
    assert "cuda_compute_capability {\n                major: 9 minor: 0" in requests[0]["target_config"]
    assert "cuda_compute_capability {\n                major: 8 minor: 0" in requests[1]["target_config"]
    assert f"runtime_version {{ major: {cuda} }}" in requests[0]["target_config"]


@pytest.mark.parametrize(
    ("name", "capability", "threads"),
    [
        *(("t4", (7, 5), 1024), ("a100", (8, 0), 2048), ("a10g", (8, 6), 1536), ("l4", (8, 9), 1536)),
        *(("rtx4090", (8, 9), 1536), ("h100", (9, 0), 2048), ("b200", (10, 0), 2048), ("rtx5090", (12, 0), 1536)),
    ],
)
def test_a_gpu_has_the_limits_of_its_compute_capability(
    name: str, capability: tuple[int, int], threads: int, requests: list[dict[str, Any]]
) -> None:
    """Check the limits against the table of CUDA's programming guide."""
    devices_of(f"cuda:{name}")
    (description,) = (numbers(request["target_config"]) for request in requests)
    assert (GPUS[name].capability, description["threads_per_core_limit"]) == (capability, str(threads))
    shared = {7: 64, 8: 100, 9: 228, 10: 228, 12: 100}[capability[0]] if capability != (8, 0) else 164
    block = shared if capability == (7, 5) else shared - 1
    assert int(description["shared_memory_per_core"]) == shared << 10
    assert int(description["shared_memory_per_block_optin"]) == block << 10
