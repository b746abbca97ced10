"""Programs for Colab's GPUs and TPUs are lowered by its JAX, as far as goes without a device.

A GPU's compiler is in its driver's library: jax-cuda12 0.7.2 compiles for no absent one. libtpu 0.0.21.1, of Colab,
cannot compile for an absent TPU either, and reads Mosaic modules up to version 7; JAX's own libtpu, 0.0.23, compiles.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.colab import lowered
from tests.colab.packages import FOLDER, LIBTPU
from tests.documents import ROOT
from tests.two_steps import OPTIONS

READABLE: Final = 7
"""The newest version of Mosaic's modules that libtpu 0.0.21.1 reads."""


def run(*arguments: str, **variables: str) -> str:
    """Return what Colab's Python prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "PYTEST_"))}
    paths = [str(ROOT / "toolkit"), str(ROOT / "kernels"), str(ROOT), variables.pop("PYTHONPATH", "")]
    ours = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [str(FOLDER / "bin" / "python"), "-m", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=inherited | ours | variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def programs() -> list[dict[str, Any]]:
    *programs, version = map(json.loads, run("tests.colab.lowered").splitlines())
    assert version == "0.7.2"
    assert len(programs) == 2 * sum(len(gpus) + 2 for gpus in lowered.MODELS.values())
    return programs


def test_steps_for_its_gpus_are_lowered_with_our_kernels_and_without(programs: list[dict[str, Any]]) -> None:
    for program in programs:
        if program["platform"] == lowered.XLA:
            assert program["kernels"] == []
        elif program["platform"] != lowered.TPU:
            assert set(program["kernels"]) == {"__gpu$xla.gpu.triton"}, program
            assert len(program["kernels"]) >= 2, "attention and the writing of pages"


def test_steps_for_its_tpus_are_of_a_version_that_its_libtpu_reads(programs: list[dict[str, Any]]) -> None:
    versions = [program["kernels"] for program in programs if program["platform"] == lowered.TPU]
    assert all(versions)
    assert {version for each in versions for version in each} == {READABLE}


@pytest.mark.timeout(1200)
def test_its_jax_compiles_for_a_tpu_by_the_libtpu_of_that_jax(families: Path, tmp_path: Path) -> None:
    printed = run(
        "rekindle",
        "precompile",
        str(families / "llama-tied"),
        *("--target", "tpu:v5e:1x1"),
        *OPTIONS.split(),
        PYTHONPATH=str(LIBTPU),
        REKINDLE_CACHE=str(tmp_path),
        TPU_SKIP_MDS_QUERY="1",
    )
    assert "7: 7 compiled" in printed
    assert "jax 0.7.2, jaxlib 0.7.2, flax 0.11.2, numpy 2.1.3, libtpu 0.0.23" in printed
