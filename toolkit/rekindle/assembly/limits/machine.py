"""The share of the machine for this process: cores, and the limits of its control groups on Linux."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_OF_KIND: Final = {"memory": ("memory.max", "memory.limit_in_bytes"), "cpu": ("cpu.max", "cpu.cfs_quota_us")}
"""Names of the files with a limit, by its kind: of the second and the first version of control groups."""
_USUAL: Final = "sys/fs/cgroup"
THREADS: Final = "NPROC"
"""Variable with the number of XLA's threads; without it, XLA starts one for each visible core."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the least memory limit in bytes of this process's control groups, from its own up to the root.

    Args:
        root: the root of the file system.
    """
    limits = list[int]()
    for folder in _folders("memory", root):
        for name in _OF_KIND["memory"]:
            with suppress(OSError, ValueError):  # the file is absent, or contains "max"
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def cores(root: Path = Path("/")) -> int:
    """Return the number of cores for this process: by its affinity, and by the CPU time of its groups.

    Args:
        root: the root of the file system.
    """
    quotas = [quota for folder in _folders("cpu", root) if (quota := _quota(folder)) is not None]
    return max(1, min([_visible(), *map(math.ceil, quotas)]))


def limit_threads() -> None:
    """Tell XLA the number of cores if a control group has fewer than are visible: more threads would wait in turns.

    It has an effect before JAX's first computation alone.
    """
    from jax._src import xla_bridge

    number, has_several_devices = cores(), "device_count" in os.environ.get("XLA_FLAGS", "")
    if number < _visible() and not has_several_devices and not xla_bridge.backends_are_initialized():
        os.environ.setdefault(THREADS, str(number))


def _visible() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy of control groups in the file system.

    Attributes:
        place: its directory.
        group: the group of the directory.
        kinds: the kinds of its limits; empty for all of them, in the second version.
    """

    place: Path
    group: PurePosixPath
    kinds: frozenset[str]


def _quota(folder: Path) -> float | None:
    """Return the CPU time of a group as a number of cores; None without a limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def _folders(kind: str, root: Path) -> Iterator[Path]:
    """Yield the directories of this process's group and of all groups around it, for limits of a kind."""
    own = _own_groups(root)
    mounts = [*_mounts(root), _Mount(root / _USUAL, PurePosixPath("/"), frozenset())]
    mounts.append(_Mount(root / _USUAL / kind, PurePosixPath("/"), frozenset({kind})))
    for mount in dict.fromkeys(mounts):
        group = own.get(kind) if kind in mount.kinds else own.get("") if not mount.kinds else None
        if group is None:
            continue
        is_inside = ".." not in group.parts and group.is_relative_to(mount.group)
        folder = mount.place / group.relative_to(mount.group) if is_inside else mount.place
        yield from (folder, *(each for each in folder.parents if each.is_relative_to(mount.place)))


def _own_groups(root: Path) -> dict[str, PurePosixPath]:
    """Return this process's groups by the kind of their limits; "" is the one group of the second version."""
    groups = {"": PurePosixPath("/"), "memory": PurePosixPath("/"), "cpu": PurePosixPath("/")}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, _, rest = line.partition(":")
            kinds, _, path = rest.partition(":")
            groups |= {kind: PurePosixPath(path) for kind in kinds.split(",")}
    return groups


def _mounts(root: Path) -> Iterator[_Mount]:
    """Yield the mounted hierarchies of control groups."""
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            fields, _, of_type = line.partition(" - ")
            kind, _, options = of_type.partition(" ")
            places = fields.split(" ")
            if kind not in ("cgroup", "cgroup2") or len(places) < 5:
                continue
            kinds = frozenset(options.split(" ")[-1].split(",")) if kind == "cgroup" else frozenset[str]()
            yield _Mount(root / places[4].lstrip("/"), PurePosixPath(places[3]), kinds)
