"""bfloat16 with AVX-512 has the same bits in both of its forms, so that a process may take the faster one.

Where the CPU has no VDPBF16PS, a stand-in with its definition takes its place.
"""

import subprocess
from pathlib import Path

import pytest

from rekindle_kernels.cpu import build, library
from tests.instruction_sets import EMULATED, NATIVE
from tests.waiting import PATIENCE

x86 = pytest.mark.skipif(build.architecture() != "x86_64", reason="other architectures have one form")


@x86
@pytest.mark.wide
def test_both_forms_of_bfloat16_have_the_same_bits(tmp_path: Path) -> None:
    sets, name = build.INSTRUCTION_SETS["x86_64"], build.BELOW_TILES
    here = library.instruction_set() in (name, *build.TILES)
    program = tmp_path / "apart"
    command = [*build.compiler(), *build.FLAGS, "-O1", "-w", *(sets[name] if here else EMULATED[name])]
    files = [str(file) for file in (NATIVE / "apart.cc", *(build.SOURCES / source for source in build.EXACT_SOURCES))]
    subprocess.run(
        [*command, *files, f"-I{build.SOURCES}", f"-DREKINDLE_ISA={name}", "-o", str(program)], check=True, cwd=tmp_path
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "0 of 64 layers and 240 attentions differ\n")
