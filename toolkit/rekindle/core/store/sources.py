"""Digests of the sources of modules, with all imports."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rekindle.core.store.file_digests import note, noted

KERNELS: Final = "rekindle_kernels"
_IMPORT: Final = re.compile(rb"\b(?:from|import) (rekindle[\w.]*)(?: import (\([^)]*\)|[^\n]*))?")
_NAME: Final = re.compile(rb"\w+")

FileState = tuple[int, int, int, int]
"""Inode, size, and the times of the last changes of content and of inode, in nanoseconds."""


class Sources:
    """The source files of Rekindle at the time of the import.

    Args:
        roots: the folder of each package, by its name.
    """

    def __init__(self, roots: Mapping[str, str]):
        self._roots = roots
        self._states = dict(self._scan())
        self._digests: dict[str, str] = {}

    def digest(self, module: str) -> str:
        """Return a digest of the sources of a module with all imports, at once or later.

        The kernels count whole, with tables of tile sizes, since implementations are imported by names in data.

        After an edit of any source since the import, the running code is unknown. Each call then returns a new digest,
        so no stored entry is used, and no entry stored from now on is ever used again.
        """
        if _contents(dict(self._scan())) != _contents(self._states):
            return f"edited after the import ({os.urandom(16).hex()})"
        if module not in self._digests:
            folder, state = Path(self._roots[KERNELS]), hashlib.sha256(repr(sorted(self._states.items())).encode())
            digest = noted(folder, [state.hexdigest()], module)
            if digest is None:
                digest = self._computed(module)
                note(folder, [state.hexdigest()], digest, module)
            self._digests[module] = digest
        return self._digests[module]

    def _computed(self, module: str) -> str:
        whole = hashlib.sha256()
        for name in self.files(module):
            whole.update(f"{name} {hashlib.sha256(self._read(name)).hexdigest()}\n".encode())
        return whole.hexdigest()

    def files(self, module: str) -> list[str]:
        """Return the files of a module with all imports, by name from the package on."""
        files, visited, rest = set[str](), set[str](), [module]
        while rest:
            name = rest.pop()
            if name in visited:
                continue
            visited.add(name)
            if name.partition(".")[0] == KERNELS:
                files.update(file for file in self._states if file.startswith(f"{KERNELS}/"))
            elif (file := self._file_of(name)) is not None:
                files.add(file)
                rest += _imports(self._read(file))
        return sorted(files)

    def _scan(self) -> Iterator[tuple[str, FileState]]:
        """Yield the names and the states of all sources and tables."""
        folders = list(self._roots.items())
        while folders:
            name, folder = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith((".py", ".json")):
                        status = entry.stat()
                        state = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                        yield f"{name}/{entry.name}", state
                    elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                        folders.append((f"{name}/{entry.name}", entry.path))

    def _file_of(self, module: str) -> str | None:
        """Return the file of a module or a package; None for another name, and for names for users."""
        place = module.replace(".", "/")
        files = (f"{place}.py", f"{place}/__init__.py") if place not in self._roots else ()
        return next((file for file in files if file in self._states), None)

    def _read(self, name: str) -> bytes:
        package, _, inner = name.partition("/")
        return Path(self._roots[package], inner).read_bytes()


def _contents(states: Mapping[str, FileState]) -> dict[str, tuple[int, ...]]:
    """Return the states without the times of inodes, such as of a link from another environment."""
    return {name: state[:3] for name, state in states.items()}


def _imports(source: bytes) -> Iterator[str]:
    """Yield the imports of a source: modules, and names in modules, perhaps modules too."""
    for module, names in _IMPORT.findall(source):
        yield module.decode()
        for name in _NAME.findall(names):
            yield f"{module.decode()}.{name.decode()}"


def _folder_of(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin)


SOURCES: Final = Sources({name: _folder_of(name) for name in ("rekindle", KERNELS)})
