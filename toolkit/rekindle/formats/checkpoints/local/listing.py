"""Listing of folders with models, some of which may belong to other users."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

Entries = Sequence["os.DirEntry[str]"]


class Listing:
    """Content of folders. An unreadable folder is skipped, and a missing one is empty.

    Attributes:
        skipped: a line about each unreadable folder.
    """

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def entries(self, folder: Path) -> Entries:
        """Return the entries of a folder by name."""
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:  # the latter for a NUL in a setting of another program
            self.skipped.append(f"{folder} was skipped: {getattr(error, 'strerror', None) or error}")
            return []

    def at_depth(self, root: Path, depth: int) -> Iterator["os.DirEntry[str]"]:
        """Yield the entries so many levels below a folder."""
        for entry in self.entries(root):
            if depth == 1:
                yield entry
            elif is_folder(entry):
                yield from self.at_depth(Path(entry.path), depth - 1)

    def below(self, root: Path, depth: int, most: int) -> Iterator[tuple[Path, Entries]]:
        """Yield a folder and its folders with their entries, the nearest first, without hidden ones.

        Args:
            root: the folder.
            depth: the number of levels below the folder.
            most: the number of entries at the end of the search, with a line about it.
        """
        rest, places, count = deque([(root, 0)]), set[str](), 0
        while rest:
            folder, level = rest.popleft()
            if (place := os.path.realpath(folder)) in places:  # a link to a folder above would have no end
                continue
            places.add(place)
            entries = self.entries(folder)
            yield folder, entries
            count += len(entries)
            if count >= most:
                self.skipped.append(f"the search of {root} ended after {count:,} files: pass the folders with models")
                return
            if level < depth:
                rest.extend((folder / entry.name, level + 1) for entry in entries if _is_searched(entry))


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Return True for a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: "os.DirEntry[str]") -> bool:
    """Return True for a file, or a link to one."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_searched(entry: "os.DirEntry[str]") -> bool:
    return (
        not entry.name.startswith((".", "__"))
        and entry.name not in ("node_modules", "proc", "sys")
        and is_folder(entry)
    )
