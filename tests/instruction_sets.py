"""Runs tests with the native kernels of each lesser instruction set: `python -m tests.instruction_sets [tests]`.

The best one that the machine has is what all other tests run with.
"""

import sys
from typing import Final

from rekindle_kernels.cpu import build, library
from tests.rebuilt import rebuilt

BUILD: Final = """
import sys
from rekindle_kernels.cpu import build
sets = build.INSTRUCTION_SETS[build.architecture()]
build.INSTRUCTION_SETS[build.architecture()] = {name: sets[name] for name in sys.argv[1:]}
build.build(build.library())
from rekindle_kernels.cpu import library
assert library.instruction_set() in sys.argv, library.instruction_set()
"""


def lesser() -> list[str]:
    """Return the instruction sets that this machine has, without the best: each has all of those before it."""
    sets = list(build.INSTRUCTION_SETS[build.architecture()])
    return sets[: sets.index(library.instruction_set())]


def run(tests: list[str]) -> int:
    """Build the library for one instruction set after the other, and run tests; return the first bad exit status."""
    for name in lesser():
        sys.stdout.write(f"instruction set {name}:\n")
        sys.stdout.flush()
        with rebuilt(BUILD, name) as copy:
            if status := copy.pytest(tests):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
