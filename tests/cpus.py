"""Runs numeric tests as on other CPUs: `python -m tests.cpus [tests]`.

XLA compiles for fewer instructions than this machine has, with and without its optimizations, and our kernels are built
for the fewest. With `--all`, XLA compiles for each set in both ways. All other tests run with what the machine has.
`tests.instruction_sets` has every set of our kernels.
"""

import os
import sys
from typing import Final

from rekindle_kernels.cpu import build, library
from tests.instruction_sets import BUILD
from tests.rebuilt import ROOT, Rebuilt, rebuilt

FEW: Final = (("SSE4_2", ()), ("AVX2", ("--optimized",)))
"""The most instructions that XLA may use, and pytest's options."""
ALL: Final = tuple((isa, options) for isa in ("SSE4_2", "AVX", "AVX2", "AVX512") for options in ((), ("--optimized",)))
WITHOUT_FLOAT16: Final = ("SSE4_2",)
"""XLA has failed to compile conversions of float16 for these."""
FLOAT16: Final = "tests/kernels/test_stored.py"


def run(tests: list[str]) -> int:
    """Run tests in each way, and then with our kernels for the fewest instructions; return the first bad status."""
    ways = ALL if "--all" in tests else FEW
    tests = [one for one in tests if one != "--all"]
    for isa, options in ways:
        if status := _run(Rebuilt(os.environ | {"PYTHONPATH": str(ROOT)}), isa, [*options, *tests]):
            return status
    name, flags = next(iter(build.INSTRUCTION_SETS[build.architecture()].items()))
    if name == library.instruction_set():
        return 0
    with rebuilt(BUILD, name, *flags) as copy:
        return _run(copy, "AVX2", tests, f", our kernels for {name}")


def _run(library_of: Rebuilt, isa: str, tests: list[str], more: str = "") -> int:
    if isa in WITHOUT_FLOAT16:
        tests = [one for one in tests if one != FLOAT16]
    sys.stdout.write(f"XLA for {isa}{more}: pytest {' '.join(tests)}\n")
    sys.stdout.flush()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={isa}".strip()
    return library_of.pytest(tests, {"XLA_FLAGS": flags})


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
