"""Runs tests with the kernels of other instruction sets than the best: `python -m tests.instruction_sets [tests]`.

With `--last`, it runs two of them only: the one with the most instructions of this machine, and tiles. All other tests
run with the machine's best set. Missing sets of AVX-512, and AMX, are emulated: AMX by its own machine code.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from rekindle_kernels.cpu import build, library
from tests.rebuilt import ROOT, Rebuilt, rebuilt

BUILD: Final = """
import sys
from rekindle_kernels.cpu import build
name, *flags = sys.argv[1:]
build.INSTRUCTION_SETS[build.architecture()] = {name: flags}
build.build(build.library())
from rekindle_kernels.cpu import library
assert library.instruction_set() == name, library.instruction_set()
"""
BUILD_TILES: Final = """
import sys
from rekindle_kernels.cpu import build
sets = build.INSTRUCTION_SETS[build.architecture()]
build.INSTRUCTION_SETS[build.architecture()] = {build.BELOW_TILES: sets[build.BELOW_TILES]}
build.build(build.library(), sys.argv[1:])
from rekindle_kernels.cpu import library
assert library.instruction_set() == "amx", library.instruction_set()
"""
NATIVE: Final = ROOT / "tests" / "native"
_AVX512: Final = ("-mavx2", "-mfma", "-Wno-psabi", "-include", str(NATIVE / "avx512.h"))
EMULATED: Final = {"avx512": _AVX512, "avx512_bf16": (*_AVX512, "-DREKINDLE_WITH_BF16")}
"""The flags of emulated sets: stand-ins in avx512.h compute them on a CPU with AVX2."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run tests with an instruction set.

    Attributes:
        name: the set.
        code: what builds a library of its own, or "" for a set of the present library.
        arguments: of that code.
    """

    name: str
    code: str = ""
    arguments: tuple[str, ...] = ()

    def open(self) -> AbstractContextManager[Rebuilt]:
        """Return the library to run tests with."""
        if self.code:
            return rebuilt(self.code, *self.arguments)
        return nullcontext(Rebuilt(os.environ | {"PYTHONPATH": str(ROOT), build.CHOICE: self.name}))


def others() -> Iterator[Way]:
    """Yield the instruction sets but the machine's best, those without tiles first."""
    sets, best = build.INSTRUCTION_SETS[build.architecture()], library.instruction_set()
    tiled = best in build.TILES
    has = list(sets)[: len(sets) if tiled else list(sets).index(best)]
    for name in sets:
        if name in has:
            yield Way(name)
        elif name != best and name in EMULATED:
            yield Way(f"{name}, emulated", BUILD, ("avx2", *EMULATED[name]))
    if tiled or best == build.BELOW_TILES:
        yield Way("amx_reference")
    if best == build.BELOW_TILES:
        yield Way("amx, emulated", BUILD_TILES, ("-include", str(NATIVE / "amx.h")))


def run(tests: list[str]) -> int:
    """Run tests with one instruction set after the other; return the first bad exit status."""
    ways = list(others())
    if "--last" in tests:
        tests = [one for one in tests if one != "--last"]
        tiled = [way for way in ways if way.name.startswith("amx")]
        ways = [way for way in ways if way not in tiled][-1:] + tiled[-1:]
    for way in ways:
        sys.stdout.write(f"instruction set {way.name}:\n")
        sys.stdout.flush()
        with way.open() as copy:
            if status := copy.pytest(tests):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
