"""`python -m rekindle cache ls` and `size`: the content of the cache directory, in words."""

import json
import os
import re
import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rekindle.cli.cache import stored
from rekindle.cli.cache.stored import MODELS
from rekindle.cli.units import ago, columns
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.engine.loading.stores import PROGRAMS, SNAPSHOTS
from rekindle.core.markup import quantity, size_text
from rekindle.core.models.config import LayerConfig
from rekindle.core.store.catalog import Entry
from rekindle.core.store.directory import cache_dir
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.core.store.validity import code_digest

EMPTY: Final = "The cache is empty: `rekindle.open` and `rekindle precompile` fill it."
STEP: Final = "step of "
MODEL_SIZES: Final = ("family", "hidden_size")


def ls(arguments: Namespace) -> int:
    """Print the cache directory, and what is in each of its directories."""
    root, long = cache_dir(), bool(arguments.long)
    sections = [
        _section(MODELS, _models()),
        _section(PROGRAMS, _programs(long)),
        _section(SNAPSHOTS, _snapshots(root, long)),
    ]
    others = [(path.name, size_text(stored.size_of(path))) for path in _others(root)]
    if others:
        sections.append(["others", *columns(others)])
    sections = [lines for lines in sections if lines] or [[EMPTY]]
    print(root, *(line for lines in sections for line in ("", *lines)), sep="\n")
    return 0


def size(arguments: Namespace) -> int:
    """Print what each directory takes, and all of them together."""
    root = cache_dir()
    paths = [*(path for name in (MODELS, PROGRAMS, SNAPSHOTS) if (path := stored.place(name)).exists()), *_others(root)]
    sizes = {path.name: stored.size_of(path) for path in paths}
    lines = columns([(name, size_text(count)) for name, count in {**sizes, "all of it": sum(sizes.values())}.items()])
    print(root, *(lines if any(sizes.values()) else [EMPTY]), sep="\n")
    return 0


def _others(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.name not in (MODELS, PROGRAMS, SNAPSHOTS))


def _section(name: str, lines: Iterable[str]) -> list[str]:
    """Return a title and its lines; nothing for a directory that holds nothing."""
    lines, path = list(lines), stored.place(name)
    if not lines:
        return []
    link = f", which is {path.resolve()}" if path.is_symlink() else ""
    return [f"{name}, {size_text(stored.size_of(path))}{link}", *lines]


def _models() -> list[str]:
    return columns([(path.name, size_text(stored.size_of(path))) for path in sorted(stored.entries(MODELS))])


def _programs(long: bool) -> Iterator[str]:
    found, code = ProgramCatalog(stored.place(PROGRAMS)).entries(), code_digest()
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in found:
        groups[_made_for(entry, code)].append(entry)
    for title, group in groups.items():
        yield f"  {title}"
        yield f"    {quantity(len(group), 'program')}, {_size_and_use(group)}"
        if long:
            yield from columns([(entry.digest, _name(entry), _size_and_use([entry])) for entry in group], "    ")
        else:
            yield f"    {_names(group)}"
    yield from _rest(PROGRAMS, found)


def _snapshots(root: Path, long: bool) -> Iterator[str]:
    found, code = SnapshotCatalog(stored.place(SNAPSHOTS)).entries(), code_digest()
    for entry in found:
        model = entry.model.removeprefix(f"{root}{os.sep}{MODELS}{os.sep}")
        yield f"  {model}, {entry.parts.get('dtype', '')}{_version(entry, code)}"
        told = f"{quantity(entry.pages, 'page')}, {quantity(entry.tokens, 'token')}"
        yield f"    {told}, {_size_and_use([entry])}"
        if long:
            yield f"    {entry.digest}"
    yield from _rest(SNAPSHOTS, found)


def _made_for(entry: Entry, code: str) -> str:
    """Return the model, as far as a program knows it, and the device, in words."""
    model, statics = entry.parts.get("model", ""), json.loads(entry.parts.get("statics", "{}"))
    family, hidden = (found[1] if (found := re.search(f"{name}='?(\\w+)", model)) else "?" for name in MODEL_SIZES)
    layers = model.count(f"{LayerConfig.__name__}(") or "?"
    device = entry.parts.get("device_kind", "an unknown device")
    dtype = f", {statics['dtype']}" if "dtype" in statics else ""
    return f"{family} of {layers} layers, hidden {hidden}{dtype}, for {device}{_version(entry, code)}"


def _version(entry: Entry, code: str) -> str:
    return "" if entry.parts.get("code") == code else ", of another version of Rekindle"


def _name(entry: Entry) -> str:
    return entry.parts.get("program", "unknown")


def _names(group: list[Entry]) -> str:
    """Return each name once; buckets by their size, after one "step of"."""
    counts = Counter(map(_name, group))
    steps = sorted((name for name in counts if name.startswith(STEP)), key=_bucket)
    told = [
        name + (f" (x{counts[name]})" if counts[name] > 1 else "") for name in (*sorted(counts.keys() - steps), *steps)
    ]
    first = len(told) - len(steps)
    return ", ".join([*told[: first + 1], *(text.removeprefix(STEP) for text in told[first + 1 :])])


def _bucket(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _size_and_use(group: Sequence[Entry]) -> str:
    used = ago(time.time() - max(entry.used for entry in group))
    return f"{size_text(sum(entry.bytes for entry in group))}, used {used}"


def _rest(name: str, found: Sequence[Entry]) -> Iterator[str]:
    """Say how many bytes no entry accounts for, if there are any."""
    rest = stored.size_of(stored.place(name)) - sum(entry.bytes for entry in found)
    if rest > 0:
        yield f"  and {size_text(rest)} that is being written, was left by a killed process, or is damaged"
        yield "    `rekindle cache verify` says what is damaged, `rekindle cache prune` removes what was left"
