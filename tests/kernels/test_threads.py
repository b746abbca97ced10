"""Native kernels have no data race, and callers that share a pool neither hang nor disturb each other."""

import subprocess
from pathlib import Path

import pytest

from rekindle_kernels.cpu import build
from tests.waiting import PATIENCE

DRIVER = Path(__file__).parents[1] / "native" / "threads.cc"


@pytest.mark.deep
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_callers_of_one_pool_have_no_race_and_the_right_sums(sanitizer: str, tmp_path: Path) -> None:
    name, flags = next(iter(build.INSTRUCTION_SETS[build.architecture()].items()))
    program = tmp_path / "threads"
    command = [*build.compiler(), *build.FLAGS, "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread", *flags]
    sources = ("isa.cc", "stored.cc", *build.EXACT_SOURCES, "pack_stored.cc")
    files = [str(DRIVER), *(str(build.SOURCES / source) for source in sources)]
    subprocess.run(
        [*command, *files, f"-I{build.SOURCES}", f"-DREKINDLE_ISA={name}", "-o", str(program)], check=True, cwd=tmp_path
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "10 of 10 callers had the right sums\n"
