"""Runs tests with the kernels of other instruction sets than the best: `python -m tests.instruction_sets [tests]`.

With `--last`, it runs one set only, with the most instructions. All other tests run with the machine's best set.
Missing sets of AVX-512 are emulated.
"""

import sys
from collections.abc import Iterator
from typing import Final

from rekindle_kernels.cpu import build, library
from tests.rebuilt import ROOT, rebuilt

BUILD: Final = """
import sys
from rekindle_kernels.cpu import build
name, *flags = sys.argv[1:]
build.INSTRUCTION_SETS[build.architecture()] = {name: flags}
build.build(build.library())
from rekindle_kernels.cpu import library
assert library.instruction_set() == name, library.instruction_set()
"""
_AVX512: Final = ("-mavx2", "-mfma", "-Wno-psabi", "-include", str(ROOT / "tests" / "native" / "avx512.h"))
EMULATED: Final = {"avx512": _AVX512, "avx512_bf16": (*_AVX512, "-DREKINDLE_WITH_BF16")}
"""The flags of emulated sets: stand-ins in avx512.h compute them on a CPU with AVX2."""


def others() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the flags of each instruction set but the machine's best."""
    sets, best = build.INSTRUCTION_SETS[build.architecture()], library.instruction_set()
    has = list(sets)[: list(sets).index(best)]
    for name, flags in sets.items():
        if name in has:
            yield name, (name, *flags)
        elif name != best and name in EMULATED:
            yield f"{name}, emulated", ("avx2", *EMULATED[name])


def run(tests: list[str]) -> int:
    """Build the library for one instruction set after the other, and run tests; return the first bad exit status."""
    sets = list(others())
    if "--last" in tests:
        tests = [one for one in tests if one != "--last"]
        sets = sets[-1:]
    for name, arguments in sets:
        sys.stdout.write(f"instruction set {name}:\n")
        sys.stdout.flush()
        with rebuilt(BUILD, *arguments) as copy:
            if status := copy.pytest(tests):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
