"""`python -m rekindle cache`: list, measure, explain, verify, prune or clear what the cache directory holds.

No command deserializes anything that is stored, and sessions may use the directory meanwhile.
"""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rekindle.cli import needed
from rekindle.cli.cache import stored
from rekindle.cli.cache.explain import explain
from rekindle.cli.cache.listing import ls, size
from rekindle.cli.cache.stored import MODELS, STORES
from rekindle.cli.units import parse_size
from rekindle.core.errors import StorageError
from rekindle.core.markup import quantity, size_text
from rekindle.core.store import entries as disk
from rekindle.core.store.directory import cache_dir

ALL: Final = "all"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the commands and their arguments."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Namespace], int], what: str) -> ArgumentParser:
        added = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        added.set_defaults(run=partial(_told, run))
        return added

    lists = command("ls", ls, "models, programs and snapshots that are there")
    lists.add_argument("--long", action="store_true", help="each program, and whole digests")
    command("size", size, "what each directory takes, and all of them")
    prunes = command("prune", prune, "remove what was used least recently, and what killed processes left behind")
    prunes.set_defaults(refuse=prunes.error)
    for name, what in (("max", "of programs and snapshots together"), *((store, f"of {store}") for store in STORES)):
        prunes.add_argument(
            f"--{name}-bytes",
            type=parse_size,
            metavar="SIZE",
            help=f"keep at most this much {what}, such as 500M, 2G, 1.5GiB",
        )
    clears = command("clear", clear, "remove all programs, all snapshots, or both")
    clears.add_argument(
        "what",
        nargs="?",
        default=ALL,
        choices=(*STORES, ALL, MODELS),
        help="all, which is the default, is programs and snapshots; downloaded models go only where they are named",
    )
    clears.add_argument("--yes", action="store_true", help="do not ask")
    explains = command("explain", explain, "which programs and pages a model finds here, and why not the others")
    needed.add_arguments(explains)
    explains.add_argument("--long", action="store_true", help="whole values of what differs")
    verifies = command("verify", verify, "read all programs and snapshots, and say what is not as it was written")
    verifies.add_argument("--drop", action="store_true", help="remove what cannot be used")


def prune(arguments: Namespace) -> int:
    """Evict what was used least recently, down to the given bounds, and remove what killed processes left behind."""
    bounds: dict[str, int | None] = {name: getattr(arguments, f"{name}_bytes") for name in STORES}
    if arguments.max_bytes is not None:
        if any(bound is not None for bound in bounds.values()):
            arguments.refuse("give --max-bytes, or bounds of the stores, not both")
        bounds = {**stored.shares(arguments.max_bytes)}
    for name, bound in bounds.items():
        print(_freed(name, partial(stored.catalog(name).prune, sys.maxsize if bound is None else bound)))
    if all(bound is None for bound in bounds.values()):
        print(
            "No bound was given, so only leftovers of killed processes went; --max-bytes 2G keeps what was used last."
        )
    return 0


def clear(arguments: Namespace) -> int:
    """Remove whole stores, after asking."""
    wanted = tuple(STORES) if arguments.what == ALL else (arguments.what,)
    names = [name for name in wanted if stored.entries(name) or stored.size_of(stored.place(name))]
    if not names:
        print(f"There is nothing to remove in {cache_dir()}.")
        return 0
    if not arguments.yes and not _agreed(names):
        print("Nothing was removed.")
        return 1
    for name in names:
        print(_freed(name, partial(_clear, name)))
    left = [str(stored.place(name)) for name in names if stored.entries(name)]
    if left:
        raise StorageError(
            f"something is left in {' and '.join(left)}: this user may not remove it, or a session wrote it meanwhile"
        )
    return 0


def verify(arguments: Namespace) -> int:
    """Check every byte of both stores against its seals; return 1 if one is wrong, dropped or not."""
    wrong: dict[Path, str] = {}
    for name in STORES:
        catalog = stored.catalog(name)
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
    left = [path for path in wrong if disk.identity(path)]
    if not arguments.drop:
        print("`rekindle cache verify --drop` removes what cannot be used; it is made anew when it is needed.")
    elif left:
        raise StorageError(f"{quantity(len(left), 'entry', 'entries')} could not be removed, such as {left[0]}")
    else:
        print("What cannot be used was removed; it is made anew when it is needed.")
    return 1


def _told(run: Callable[[Namespace], int], arguments: Namespace) -> int:
    """Run a command, and turn errors of the disk into one of Rekindle's own."""
    try:
        return run(arguments)
    except BrokenPipeError:  # of stdout
        raise
    except OSError as error:
        raise StorageError(f"this cannot be read or written: {error}") from error


def _clear(name: str) -> None:
    if name in STORES:
        stored.catalog(name).clear()
        return
    for path in stored.entries(name):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _freed(name: str, remove: Callable[[], None]) -> str:
    """Remove something of a store, and return in words what went and what is left."""
    directory = stored.place(name)
    entries, taken = len(stored.entries(name)), stored.size_of(directory)
    remove()
    left, leaves = len(stored.entries(name)), stored.size_of(directory)
    gone = quantity(max(0, entries - left), "entry", "entries")
    return f"{name}: {gone} removed, {size_text(max(0, taken - leaves))} freed; {left} left, {size_text(leaves)}"


def _agreed(names: list[str]) -> bool:
    """Ask a person whether to remove these stores.

    Raises:
        StorageError: there is nobody to ask.
    """
    sizes = " and ".join(f"{size_text(stored.size_of(stored.place(name)))} of {name}" for name in names)
    if not sys.stdin.isatty():
        raise StorageError(f"nothing was removed of {sizes}: give --yes, since there is no terminal to ask at")
    places = ", ".join(str(stored.place(name).resolve()) for name in names)
    try:
        return input(f"Remove {sizes} for good, in {places}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
