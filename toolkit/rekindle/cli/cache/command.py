"""The command `cache`: list, measure, explain, verify, prune or clear the cache directory.

No command deserializes stored entries, and sessions may use the directory meanwhile.
"""

import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.loading.stores import PROGRAMS, SNAPSHOTS
from rekindle.assembly.programs.restore_report import NO_VALUE, part_label
from rekindle.chats import archive
from rekindle.cli.arguments.cache import ALL
from rekindle.cli.cache import stores
from rekindle.cli.cache.listing import content_of, ls, size
from rekindle.cli.cache.stores import STORES
from rekindle.cli.models.planning import Requirements
from rekindle.cli.units import columns
from rekindle.core.device.programs.functions import program_name
from rekindle.core.errors import StorageError
from rekindle.core.store import entries as disk
from rekindle.core.store.directory import cache_dir
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.core.store.validity import Difference, shorten
from rekindle.core.words import ago, quantity, size_text
from rekindle.notebook.progress.bars import ProgressBars


def explain(arguments: Namespace) -> int:
    """Explain every program and the snapshot of a model, without its weights and without a compiler."""
    with ProgressBars(not arguments.quiet) as bars:
        requirements = Requirements.of(arguments, bars.show)
    blueprint = requirements.blueprint
    print(f"{blueprint.checkpoint.source}, {blueprint.dtype.name}, for {requirements.devices[0].device_kind}")
    for line in (*_programs(requirements, bool(arguments.long)), *_snapshot(requirements, bool(arguments.long))):
        print(line)
    return 0


def _programs(requirements: Requirements, long: bool) -> Iterator[str]:
    keys = requirements.blueprint.all_programs()
    missing = requirements.store.missing(keys)
    yield f"\nprograms: {len(keys) - len(missing)} of {len(keys)} are stored in {stores.path_of(PROGRAMS)}"
    names = [program_name(key) for key in keys if key not in missing]
    if names:
        yield f"  stored: {', '.join(names)}"
    reasons: dict[str, list[str]] = {}
    for key in missing:
        reasons.setdefault(_reason(requirements.store.explain(key), long), []).append(program_name(key))
    for reason, names in reasons.items():
        yield f"  not stored: {', '.join(names)}"
        yield reason


def _reason(differences: Mapping[str, Difference] | None, long: bool) -> str:
    if differences is None:
        return "    no program of this name is stored"
    if not differences:
        return "    it was stored a moment ago"
    return "\n".join(("    the most similar stored program differs in", *_parts(differences, long, "      ")))


def _snapshot(requirements: Requirements, long: bool) -> Iterator[str]:
    key, directory = Identity.of(requirements.blueprint).pages_key(), stores.path_of(SNAPSHOTS)
    source = requirements.blueprint.checkpoint.source
    match = next((entry for entry in SnapshotCatalog(directory).entries() if entry.digest == key.digest), None)
    if match is not None:
        content = f"{content_of(match)}, {size_text(match.bytes)}"
        yield f"\nsnapshot: {content}, used {ago(time.time() - match.used)}, in {directory}"
        return
    differences = SnapshotStore(directory, key, source).explain()
    if differences is None:
        yield f"\nsnapshot: none of {source} is stored in {directory}"
        return
    yield f"\nsnapshot: the stored one of {source} is not used; it differs in"
    yield from _parts(differences, long, "  ")


def _parts(differences: Mapping[str, Difference], long: bool, indent: str) -> Iterator[str]:
    for part, pair in differences.items():
        here, stored = pair if long else shorten(pair)
        yield f"{indent}{part_label(part)}"
        yield from columns([("here", here or NO_VALUE), ("stored", stored or NO_VALUE)], f"{indent}  ")


def prune(arguments: Namespace) -> int:
    """Remove the least recently used entries, down to the bounds, old conversations, and leftovers."""
    bounds: dict[str, int | None] = {name: getattr(arguments, f"{name}_bytes") for name in STORES}
    if arguments.max_bytes is not None:
        if any(bound is not None for bound in bounds.values()):
            arguments.refuse("give --max-bytes, or bounds of the stores, not both")
        bounds = {**stores.shares(arguments.max_bytes)}
    for name, bound in bounds.items():
        print(_remove(name, partial(stores.catalog(name).prune, sys.maxsize if bound is None else bound)))
    if stores.entries(archive.HISTORY):
        print(_remove(archive.HISTORY, archive.prune))
    if all(bound is None for bound in bounds.values()):
        print(
            "Without a bound, only old conversations and leftovers of killed processes are removed; --max-bytes 2G "
            "keeps the latest entries."
        )
    return 0


def clear(arguments: Namespace) -> int:
    """Remove whole stores, after a confirmation."""
    targets = tuple(STORES) if arguments.what == ALL else (arguments.what,)
    names = [name for name in targets if stores.entries(name) or stores.size_of(stores.path_of(name))]
    if not names:
        print(f"There is nothing to remove in {cache_dir()}.")
        return 0
    if not arguments.yes and not _confirm(names):
        print("Nothing was removed.")
        return 1
    for name in names:
        print(_remove(name, partial(_clear, name)))
    remaining = [str(stores.path_of(name)) for name in names if stores.entries(name)]
    if remaining:
        raise StorageError(
            f"entries remain in {' and '.join(remaining)}: this user may not remove them, or a session wrote them "
            "meanwhile"
        )
    return 0


def verify(arguments: Namespace) -> int:
    """Check every byte of both stores against its seals; return 1 if an entry is damaged, dropped or not."""
    wrong: dict[Path, str] = {}
    for name in STORES:
        catalog = stores.catalog(name)
        count, bad = len(catalog.paths()), catalog.verify()
        wrong |= bad
        result = f"{len(bad)} cannot be used" if bad else "nothing is wrong"
        print(f"{name}: {quantity(count, 'entry', 'entries')} read, {result}")
    for path, reason in wrong.items():
        print(f"  {path}\n    {reason}")
        if arguments.drop:
            disk.remove(path)
    if not wrong:
        return 0
    remaining = [path for path in wrong if disk.identity(path)]
    if not arguments.drop:
        print("`rekindle cache verify --drop` removes damaged entries; they are rebuilt on demand.")
    elif remaining:
        entries = quantity(len(remaining), "entry", "entries")
        raise StorageError(f"{entries} could not be removed, such as {remaining[0]}")
    else:
        print("Damaged entries were removed; they are rebuilt on demand.")
    return 1


RUNS = {"ls": ls, "size": size, "prune": prune, "clear": clear, "explain": explain, "verify": verify}


def cache(arguments: Namespace) -> int:
    """Run the command of a name, with OSError translated to StorageError."""
    try:
        return RUNS[arguments.command](arguments)
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        raise StorageError(f"this cannot be read or written: {error}") from error


def _clear(name: str) -> None:
    if name in STORES:
        stores.catalog(name).clear()
        return
    for path in stores.entries(name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _remove(name: str, remove: Callable[[], None]) -> str:
    """Call `remove` to remove entries of a store, and return a line about the removed and the remaining entries."""
    directory = stores.path_of(name)
    count, size_before = len(stores.entries(name)), stores.size_of(directory)
    remove()
    rest, size_after = len(stores.entries(name)), stores.size_of(directory)
    removed = quantity(max(0, count - rest), "entry", "entries")
    freed = size_text(max(0, size_before - size_after))
    return f"{name}: {removed} removed, {freed} freed; {rest} left, {size_text(size_after)}"


def _confirm(names: list[str]) -> bool:
    """Ask for confirmation to remove these stores.

    Raises:
        StorageError: there is no terminal.
    """
    sizes = " and ".join(f"{size_text(stores.size_of(stores.path_of(name)))} of {name}" for name in names)
    if not sys.stdin.isatty():
        raise StorageError(f"nothing was removed of {sizes}: give --yes, since there is no terminal to ask at")
    places = ", ".join(str(stores.path_of(name).resolve()) for name in names)
    try:
        return input(f"Remove {sizes} for good, in {places}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
