"""Programs are compiled ahead of need, for this machine and for an absent one, and are found again."""

import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.store.catalog import Entry
from tests.two_steps import OPTIONS, SETTINGS

without_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler, libtpu, is not installed")
without_cuda = pytest.mark.skipif(
    not any(point.name.startswith("xla_cuda") for point in metadata.entry_points(group="jax_plugins")),
    reason="the CUDA compiler, jax's plugin, is not installed",
)

WIRED = (0, 1, 2, 3, 7, 6, 5, 4)
"""The order that JAX has for eight chips."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stored(cache: Path) -> list[Entry]:
    kept = ProgramCatalog(cache / "programs")
    assert kept.verify() == {}
    return sorted(kept.entries(), key=lambda entry: entry.digest)


def run(*arguments: str) -> str:
    """Return what a command prints in a process of its own."""
    # Other tests of this process may have described another TPU there.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    command = [sys.executable, "-m", "rekindle", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("target", "parts", "said"),
    [
        pytest.param(
            "tpu:v5e:1x1", ("TPU v5 lite", "tpu:0@0/(0, 0, 0, 0)/0 of 1"), "device    {};", marks=without_libtpu
        ),
        pytest.param(
            "tpu:v6e:2x2",
            ("TPU v6 lite", "tpu:0@0/(0, 0, 0, 0)/0 of 4"),
            "device    {}, the first of 4, as --mesh tensor=4 is not given;",
            marks=(without_libtpu, pytest.mark.deep),
        ),
        pytest.param(
            "tpu:v5e:2x4 --mesh tensor=8",
            ("TPU v5 lite", " ".join(f"tpu:{chip}@0/({chip % 2}, {chip // 2}, 0, 0)/0" for chip in WIRED) + " of 8"),
            "devices   8 {}, tensor=8;",
            marks=without_libtpu,
        ),
        pytest.param(
            "cuda:h100:8 --mesh tensor=2",
            ("NVIDIA H100 80GB HBM3 9.0", "gpu:0@0 gpu:1@0"),
            "devices   2 of 8 {}, tensor=2;",
            marks=without_cuda,
        ),
        pytest.param(
            "cuda:h100",
            ("NVIDIA H100 80GB HBM3 9.0", "gpu:0@0"),
            "device    {};",
            marks=(without_cuda, pytest.mark.deep),
        ),
    ],
)
def test_programs_are_compiled_once_for_a_device_that_is_not_there(
    target: str, parts: tuple[str, str], said: str, cache: Path, families: Path
) -> None:
    def precompile() -> str:
        return run("precompile", str(families / "llama-tied"), "--target", *target.split(), *OPTIONS.split())

    first = precompile()
    assert "7: 7 compiled" in first
    assert said.format(parts[0].removesuffix(" 9.0")) in first
    entries = stored(cache)
    assert len(entries) == 7
    assert {(entry.parts["device_kind"], entry.parts["topology"]) for entry in entries} == {parts}
    assert all(entry.parts["plugins"] and not entry.parts["host_cpu"] for entry in entries)
    assert "7: 0 compiled" in precompile()
    assert [(entry.digest, entry.created) for entry in stored(cache)] == [
        (entry.digest, entry.created) for entry in entries
    ]


@without_libtpu
def test_info_says_what_each_device_of_an_absent_machine_would_have_and_send(cache: Path, families: Path) -> None:
    text = run("info", str(families / "llama-tied"), "--target", "tpu:v6e:2x4", "--mesh", "tensor=8")
    rows = {line[:14].strip(): line[14:] for line in text.splitlines()}
    assert "device" not in rows, "this machine's devices are another matter"
    assert rows["dtype"] == "bfloat16, the default on tpu"
    assert rows["on each"].startswith("57.6 kB of weights, ")
    assert rows["on each"].endswith(", of 8 devices")
    assert rows["each sends"].startswith("3.14 kB for a token of a prompt, in 7 sums over all devices, and 4.93 kB for")


@pytest.mark.wide
def test_a_session_finds_what_was_precompiled_for_this_machine(
    cache: Path, families: Path, capsys: pytest.CaptureFixture[str], compilations: list[str]
) -> None:
    assert main(["precompile", str(families / "llama-tied"), *OPTIONS.split(), "--quiet"]) == 0
    assert "7: 7 compiled" in capsys.readouterr().out
    compilations.clear()
    with rekindle.open_sync(families / "llama-tied", progress=False, **(SETTINGS | {"restore": "require"})) as session:
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=4)
        assert (session.stats.compilations, len(stored(cache))) == (0, 7)
    assert [event for event in compilations if "backend_compile" in event] == []


def test_a_name_that_is_no_target_ends_the_command(
    cache: Path, families: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["precompile", str(families / "llama-tied"), "--target", "tpu:v9:1x1"]) == 1
    assert "no target 'tpu:v9:1x1'; known are" in capsys.readouterr().err
    assert not (cache / "programs").exists()


def test_buckets_that_are_no_numbers_are_refused(families: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["precompile", str(families / "llama-tied"), "--decode-buckets", "1,x"])
    assert "such as 16,64, got '1,x'" in capsys.readouterr().err


@pytest.mark.parametrize("mesh", ["", "tensor", "tensor=0", "tensor=-1", "tensor=x", "8", "tensor=2,tensor=4"])
def test_a_mesh_that_is_no_axes_is_refused(mesh: str, families: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["precompile", str(families / "llama-tied"), "--mesh", mesh])
    assert f"such as tensor=8, got {mesh!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("expert=2", "the mesh has an axis 'expert'; known are data, tensor"),
        ("data=2,tensor=999", "data=2 times tensor=999 needs as many devices from "),
        ("tensor=999", "tensor=999 needs as many devices from "),
    ],
)
def test_a_mesh_that_is_not_there_ends_the_command(
    mesh: str, said: str, cache: Path, families: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["precompile", str(families / "llama-tied"), "--mesh", mesh]) == 1
    assert said in capsys.readouterr().err
