"""Runs tests with native kernels that sanitizers watch: `python -m tests.sanitized address,undefined [tests]`.

Python and JAX are not watched themselves.
"""

import os
import subprocess
import sys
from typing import Final

from tests.rebuilt import rebuilt

BUILD: Final = "import sys; from rekindle_kernels.cpu.build import build, library; build(library(), sys.argv[1:])"
FLAGS: Final = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-Werror")
OPTIONS: Final = {
    "ASAN_OPTIONS": "detect_leaks=0",  # those of Python and JAX would be reported too
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def run(sanitizers: str, tests: list[str]) -> int:
    """Build the library with sanitizers, and run tests with it; return the exit status of pytest."""
    with rebuilt(BUILD, f"-fsanitize={sanitizers}", *FLAGS) as copy:
        # The C++ library must be there when the sanitizer starts, which looks for its functions once.
        preload = {"LD_PRELOAD": f"{_library_path('libasan.so')} {_library_path('libstdc++.so')}"}
        return copy.pytest(tests, OPTIONS | preload)


def _library_path(library: str) -> str:
    """Return the path of one of the compiler's libraries."""
    command = [*os.environ.get("CXX", "c++").split(), f"-print-file-name={library}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
