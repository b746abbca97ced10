"""`python -m rekindle cache ls` and `size`: the content of the cache directory."""

import json
import os
import re
import sys
import time
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.assembly.loading import identity
from rekindle.assembly.loading.stores import IMAGES, PROGRAMS, SNAPSHOTS, WEIGHTS
from rekindle.assembly.programs.starts import STARTS
from rekindle.chats import archive
from rekindle.chats.archive import HISTORY, ArchivedChat
from rekindle.cli.cache import stores
from rekindle.cli.cache.stores import MODELS
from rekindle.cli.chat.wrapping import wrap_for
from rekindle.cli.units import columns
from rekindle.core.device.programs import key
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.models.config import LayerConfig
from rekindle.core.store.catalog import Entry
from rekindle.core.store.directory import cache_dir
from rekindle.core.store.file_digests import DIGESTS
from rekindle.core.store.picture_store import PictureCatalog
from rekindle.core.store.snapshots import SnapshotCatalog, SnapshotEntry
from rekindle.core.store.sources import SOURCES
from rekindle.core.store.weight_store import WeightCatalog
from rekindle.core.words import ago, quantity, size_text

EMPTY: Final = "The cache is empty: `rekindle.open` and `rekindle precompile` fill it."
STEP: Final = "step of "
HUB: Final = re.compile(r"[\\/]models--([^\\/]+?)--([^\\/]+)[\\/]")
"""The folder of a model in the cache of the Hugging Face hub."""
MODEL_SIZES: Final = ("family", "hidden_size")


def ls(arguments: Namespace) -> int:
    """Print the content of the cache directory."""
    root, long = cache_dir(), bool(arguments.long)
    sections = [
        _section(MODELS, _models()),
        _section(PROGRAMS, _programs(root, long)),
        _section(SNAPSHOTS, _snapshots(root, long)),
        _section(IMAGES, _images(root)),
        _section(WEIGHTS, _weights(root)),
        _section(HISTORY, _history(root)),
    ]
    others = [(path.name, size_text(stores.size_of(path))) for path in _others(root)]
    if others:
        sections.append(["others", *columns(others)])
    sections = [lines for lines in sections if lines] or [[EMPTY]]
    lines = [str(root), *(line for lines in sections for line in ("", *lines))]
    print(wrap_for(sys.stdout, "\n".join(lines)))
    return 0


def size(arguments: Namespace) -> int:
    """Print the size of each directory, and of the whole cache."""
    root = cache_dir()
    paths = [
        *(path for name in (MODELS, *stores.STORES, HISTORY) if (path := stores.path_of(name)).exists()),
        *_others(root),
    ]
    sizes = {path.name: stores.size_of(path) for path in paths}
    lines = columns([(name, size_text(count)) for name, count in {**sizes, "all of it": sum(sizes.values())}.items()])
    print(root, *(lines if any(sizes.values()) else [EMPTY]), sep="\n")
    return 0


def _others(root: Path) -> list[Path]:
    return sorted(
        path for path in root.iterdir() if path.name not in (MODELS, *stores.STORES, HISTORY, STARTS, DIGESTS)
    )


def _section(name: str, lines: Iterable[str]) -> list[str]:
    """Return a title and its lines; no lines for an empty directory."""
    lines, path = list(lines), stores.path_of(name)
    if not lines:
        return []
    link = f", which is {path.resolve()}" if path.is_symlink() else ""
    return [f"{name}, {size_text(stores.size_of(path))}{link}", *lines]


def _models() -> list[str]:
    return columns([(path.name, size_text(stores.size_of(path))) for path in sorted(stores.entries(MODELS))])


def _programs(root: Path, long: bool) -> Iterator[str]:
    entries, code = ProgramCatalog(stores.path_of(PROGRAMS)).entries(), SOURCES.digest(key.CODE)
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[_title(entry, code)].append(entry)
    for title, group in groups.items():
        yield f"  {_models_of(root, group)}{title}"
        yield f"    {quantity(len(group), 'program')}, {_size_and_use(group)}"
        if long:
            yield from columns([(entry.digest, _name(entry), _size_and_use([entry])) for entry in group], "    ")
        else:
            yield f"    {_names(group)}"
    yield from _rest(PROGRAMS, entries)


def _snapshots(root: Path, long: bool) -> Iterator[str]:
    entries, code = SnapshotCatalog(stores.path_of(SNAPSHOTS)).entries(), SOURCES.digest(identity.CODE)
    for entry in entries:
        yield f"  {_short(root, entry.model)}, {entry.parts.get('numbers', '')}{_version(entry, code)}"
        yield f"    {content_of(entry)}, {_size_and_use([entry])}"
        if long:
            yield f"    {entry.digest}"
    yield from _rest(SNAPSHOTS, entries)


def _images(root: Path) -> Iterator[str]:
    entries = PictureCatalog(stores.path_of(IMAGES)).entries()
    for model in sorted({entry.model for entry in entries}):
        group = [entry for entry in entries if entry.model == model]
        yield f"  {_short(root, model)}: {quantity(len(group), 'image')}, {_size_and_use(group)}"
    yield from _rest(IMAGES, entries)


def _weights(root: Path) -> Iterator[str]:
    entries, code = WeightCatalog(stores.path_of(WEIGHTS)).entries(), SOURCES.digest(identity.CODE)
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        numbers = f"{_short(root, entry.model)}, {entry.parts.get('numbers', '')}{_version(entry, code)}"
        groups[numbers].append(entry)
    for title, group in groups.items():
        yield f"  {title}: {quantity(len(group), 'file')}, {_size_and_use(group)}"
    yield from _rest(WEIGHTS, entries)


def _history(root: Path) -> Iterator[str]:
    """Yield the conversations by model, and the lines typed in a terminal."""
    chats: dict[str, list[ArchivedChat]] = defaultdict(list)
    for path in archive.files(stores.path_of(HISTORY)):
        with suppress(OSError, InvalidRequest, ConfigError):
            chat = archive.read(path)
            chats[chat.model].append(chat)
    for model, group in sorted(chats.items()):
        count, size = quantity(len(group), "conversation"), size_text(sum(chat.stamp[1] for chat in group))
        last = ago(time.time() - max(chat.time for chat in group))
        yield f"  {_short(root, model)}: {count}, {size}, the last turn {last}"
    rest = stores.size_of(stores.path_of(HISTORY)) - sum(chat.stamp[1] for group in chats.values() for chat in group)
    if rest > 0:
        yield f"  and {size_text(rest)} of typed lines and damaged files"


def _models_of(root: Path, group: Iterable[Entry]) -> str:
    """Return the models of some programs, before their title; "" if none is known."""
    names = sorted({_short(root, entry.model) for entry in group if entry.model})
    return f"{', '.join(names)}: " if names else ""


def _short(root: Path, model: str) -> str:
    """Return the path of a model; its name alone for a downloaded one."""
    from_hub = HUB.search(model)
    return "/".join(from_hub.groups()) if from_hub else model.removeprefix(f"{root}{os.sep}{MODELS}{os.sep}")


def content_of(entry: SnapshotEntry) -> str:
    """Return the numbers of pages, states and tokens of a snapshot as text."""
    states = f", {quantity(entry.states, 'state')}" if entry.states else ""
    return f"{quantity(entry.pages, 'page')}{states}, {quantity(entry.tokens, 'token')}"


def _title(entry: Entry, code: str) -> str:
    """Return a title for programs of one model and device: the sizes of the model in the key, and the device."""
    model, statics = entry.parts.get("model", ""), json.loads(entry.parts.get("statics", "{}"))
    family, hidden = (match[1] if (match := re.search(f"{name}='?(\\w+)", model)) else "?" for name in MODEL_SIZES)
    layers = model.count(f"{LayerConfig.__name__}(") or "?"
    device = entry.parts.get("device_kind", "an unknown device")
    dtype = f", {statics['dtype']}" if "dtype" in statics else ""
    return f"{family} of {layers} layers, hidden {hidden}{dtype}, for {device}{_version(entry, code)}"


def _version(entry: Entry, code: str) -> str:
    return "" if entry.parts.get("code") == code else ", of another version of Rekindle"


def _name(entry: Entry) -> str:
    return entry.parts.get("program", "unknown")


def _names(group: list[Entry]) -> str:
    """Return each name once, with the buckets in order of size after a single "step of"."""
    counts = Counter(map(_name, group))
    steps = sorted((name for name in counts if name.startswith(STEP)), key=_bucket)
    labels = [
        name + (f" (x{counts[name]})" if counts[name] > 1 else "") for name in (*sorted(counts.keys() - steps), *steps)
    ]
    first = len(labels) - len(steps)
    return ", ".join([*labels[: first + 1], *(text.removeprefix(STEP) for text in labels[first + 1 :])])


def _bucket(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _size_and_use(group: Sequence[Entry]) -> str:
    used = ago(time.time() - max(entry.used for entry in group))
    return f"{size_text(sum(entry.bytes for entry in group))}, used {used}"


def _rest(name: str, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield lines about bytes outside of readable entries, if there are any."""
    rest = stores.size_of(stores.path_of(name)) - sum(entry.bytes for entry in entries)
    if rest > 0:
        yield f"  and {size_text(rest)} in damaged entries, in leftovers of killed processes, or being written"
        yield "    `rekindle cache verify` lists damaged entries, `rekindle cache prune` removes leftovers"
