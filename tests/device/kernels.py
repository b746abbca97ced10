"""Run the suite of the GPU kernels in a process of its own, interpreted only where there is no GPU; count its tests.

This process does not touch the device, since JAX takes most of its memory.
"""

import re
import subprocess
import sys

from tests.device.parts import ROOT, Rows, main


def measure(rows: Rows) -> None:
    """Run the suite until the limit; a tiny run takes one test of it, interpreted."""
    run_suite(rows, "tests/kernels/test_gpu.py", *(["-k", "a_large_group_of_heads"] if rows.tiny else []))


def run_suite(rows: Rows, suite: str, *options: str) -> None:
    """Run a file of tests, with options of pytest, until the limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", suite]
    command += ["-o", "addopts=", *options]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=max(1.0, rows.seconds_left), check=False
        )
    except subprocess.TimeoutExpired:
        rows.add(**{"": "cut at the limit", "tests": 0})
        return
    for outcome in ("passed", "failed", "skipped"):
        if count := re.search(rf"(\d+) {outcome}", done.stdout):
            rows.add(**{"": outcome, "tests": int(count.group(1))})
    for failure in re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE)[:20]:
        rows.add(**{"": failure[:200], "error": "failed"})
    if not re.search(r"\d+ (passed|failed)", done.stdout):
        rows.add(**{"": suite, "error": done.stdout.strip()[-300:]})


if __name__ == "__main__":
    main(measure)
