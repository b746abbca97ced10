"""Describe the machine, and tell whether anybody else uses it while a measurement runs."""

import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path

from tests.bench.say import say

QUIET_CORES = 0.12
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Count the cores of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, object]:
    """Return the facts about the machine for the report."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    vectors = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": cores(),
        "vectors": " ".join(vectors),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class Others:
    """The CPU use of all processes but the given ones, in cores, since this object was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._start = time.perf_counter()
        self._total, self._own = _total_s(), self._own_s()

    def cores(self) -> float:
        """Return the mean so far; 0 if the system does not tell."""
        elapsed = time.perf_counter() - self._start
        others = (_total_s() - self._total) - (self._own_s() - self._own)
        return max(0.0, others) / elapsed

    def _own_s(self) -> float:
        return sum(map(_process_s, self._pids))


def wait_quiet(pids: Iterable[int], limit_s: float) -> bool:
    """Wait until the others leave the machine alone for two seconds; return False if the limit passes first."""
    pids = list(pids)
    start = time.monotonic()
    announced = False
    while True:
        others = Others(pids)
        time.sleep(2)
        if others.cores() < QUIET_CORES:
            return True
        if time.monotonic() - start > limit_s:
            say(f"the machine is not quiet ({others.cores():.2f} cores in use by others): measuring all the same")
            return False
        if not announced:
            say(f"waiting up to {limit_s:.0f} s for the machine to be quiet ({others.cores():.2f} cores in use)")
            announced = True


def _total_s() -> float:
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _process_s(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rsplit(")", 1)[1].split()  # the command's name, in parentheses, may have spaces
    return (int(fields[11]) + int(fields[12])) * _TICK_S
