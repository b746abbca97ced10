"""Memory and cores are those that the control groups of this process leave to it."""

import os
from pathlib import Path

import pytest

from rekindle.assembly.limits import machine
from rekindle.assembly.limits.machine import cores, limit_threads, memory_limit

LARGE = 9223372036854771712
"""The first version's number for no limit."""


def tree(root: Path, group: str, mounts: list[str], files: dict[str, object]) -> Path:
    """Write the files of control groups below a root of a file system."""
    for name, content in {"proc/self/cgroup": group, "proc/self/mountinfo": "\n".join(mounts), **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = [
    "31 30 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory",
    "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct",
]
OF_DOCKER = "33 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"


@pytest.mark.parametrize(
    ("group", "mounts", "files", "memory"),
    [
        ("0::/", [V2], {"sys/fs/cgroup/memory.max": 100}, 100),
        ("0::/", [V2], {"sys/fs/cgroup/memory.max": "max"}, None),
        ("0::/a/b", [V2], {"sys/fs/cgroup/a/b/memory.max": 100, "sys/fs/cgroup/a/memory.max": "max"}, 100),
        ("0::/a/b", [V2], {"sys/fs/cgroup/a/b/memory.max": 100, "sys/fs/cgroup/a/memory.max": 70}, 70),
        ("0::/a/b", [V2], {"sys/fs/cgroup/c/memory.max": 5}, None),
        ("0::/a", [V2.replace("/ /sys", "/a /sys")], {"sys/fs/cgroup/memory.max": 100}, 100),
        ("0::/../b", [V2], {"sys/fs/cgroup/memory.max": 100, "sys/fs/b/memory.max": 1}, 100),
        ("0::/a", [], {"sys/fs/cgroup/a/memory.max": 100}, 100),
        ("0::/a", ["30 23 0:26 / /groups rw - cgroup2 none rw"], {"groups/a/memory.max": 100}, 100),
        ("5:memory:/job\n0::/x", V1, {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": 100}, 100),
        (
            "5:memory:/slurm/job\n",
            V1,
            {
                "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes": LARGE,
                "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": 100,
            },
            100,
        ),
        ("5:memory:/docker/abc", [OF_DOCKER], {"sys/fs/cgroup/memory/memory.limit_in_bytes": 100}, 100),
        ("damage", ["damage", " - cgroup2"], {"sys/fs/cgroup/memory.max": "x"}, None),
    ],
)
def test_the_memory_limit_is_the_least_from_the_own_group_to_the_root(
    tmp_path: Path, group: str, mounts: list[str], files: dict[str, object], memory: int | None
) -> None:
    assert memory_limit(tree(tmp_path, group, mounts, files)) == memory


@pytest.mark.parametrize(
    ("group", "mounts", "files", "expected"),
    [
        ("0::/", [V2], {}, 8),
        ("0::/a/b", [V2], {"sys/fs/cgroup/a/cpu.max": "250000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b", [V2], {"sys/fs/cgroup/a/b/cpu.max": "10000 100000"}, 1),
        ("0::/a/b", [V2], {"sys/fs/cgroup/a/b/cpu.max": "9900000 100000"}, 8),
        (
            "4:cpu,cpuacct:/job",
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": 200000,
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": 100000,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
            },
            2,
        ),
        ("0::/", [V2], {"sys/fs/cgroup/cpu.max": "100 0"}, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    mounts: list[str],
    files: dict[str, object],
    expected: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert cores(tree(tmp_path, group, mounts, files)) == expected


def test_a_quota_gives_xla_as_many_threads_before_its_first_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import xla_bridge

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    for name in (machine.THREADS, "XLA_FLAGS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: True)
    limit_threads()
    assert machine.THREADS not in os.environ
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    limit_threads()
    assert os.environ[machine.THREADS] == "2"
    monkeypatch.setenv(machine.THREADS, "5")
    limit_threads()
    assert os.environ[machine.THREADS] == "5"
