"""Run the suite of the GPU kernels in a process of its own, interpreted only where there is no GPU; count its tests.

This process does not touch the device, since JAX takes most of its memory.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter

from tests.device.parts import ROOT, Rows, main

WORKERS = 10
"""Processes of the suite, of which each compiles on a core of its own."""


def measure(rows: Rows) -> None:
    """Run the suite until the limit; a tiny run takes one test of it, interpreted."""
    run_suite(rows, "tests/kernels/test_gpu.py", *(["-k", "a_large_group_of_heads"] if rows.tiny else []))


def run_suite(rows: Rows, suite: str, *options: str) -> None:
    """Run a file of tests, with options of pytest, until the limit."""
    workers = ["-n", str(WORKERS)] if importlib.util.find_spec("xdist") and not rows.tiny else []
    command = [sys.executable, "-m", "pytest", "-v", "-m", "", "-p", "no:cacheprovider", "-W", "default", suite]
    command += ["-o", "addopts=", *workers, *options]
    variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # the workers share the device's memory
    with rows.log.open("w") as log:
        try:
            subprocess.run(
                command, cwd=ROOT, env=variables, stdout=log, timeout=max(1.0, rows.seconds_left), check=False
            )
        except subprocess.TimeoutExpired:
            rows.add(**{"": "cut at the limit"})
    output = rows.log.read_text()
    of_tests, *_ = re.split(r"^=+ short test summary", output, flags=re.MULTILINE)
    outcomes = Counter(re.findall(r"\b(PASSED|FAILED|SKIPPED)\b", of_tests))
    for outcome, count in outcomes.items():
        rows.add(**{"": outcome.lower(), "tests": count})
    for failure in sorted(set(re.findall(r"FAILED (tests/\S+)", output)))[:20]:
        rows.add(**{"": failure[:200], "error": "failed"})
    if not outcomes:
        rows.add(**{"": suite, "error": output.strip()[-300:]})


if __name__ == "__main__":
    main(measure)
