"""What a replica is made of, in a form that can be sent to another process, and the name that it is found by."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path

from rekindle.core.checkpoints.embedded import NAME
from rekindle.core.config import Settings
from rekindle.core.errors import ConfigError
from rekindle.core.models.families.reading import Family
from rekindle.core.ray import Ray

APART = ("replicas", "route", "max_waiting")
"""The settings that concern the session, and no replica."""
LONGEST_NAME = 40
PACKAGE = Path(__file__).parents[1]


def located(model: str | PathLike[str]) -> str:
    """Return a model as another process finds it, which may run in another directory."""
    name = fspath(model)
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and name.lower() != NAME else name


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the size and the time of change of each file of a model; nothing for one that is not here."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            found = file.stat()
            yield file.name, found.st_size, found.st_mtime_ns


@cache
def _sources() -> str:
    """Return a digest of all modules of Rekindle, as they are now."""
    whole = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Recipe:
    """The arguments of `open` that a replica is made of.

    Attributes:
        model: its name, or the absolute path of its files.
        settings: those of one replica.
        family, revision, chat_template: as `open` takes them.
        files: the size and the time of change of each file of a model that is here, by name.
    """

    model: str
    settings: Settings
    family: Family | None = None
    revision: str | None = None
    chat_template: str | None = None
    files: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def of(
        cls,
        model: str | PathLike[str],
        settings: Settings,
        family: Family | None,
        revision: str | None,
        chat_template: str | None,
    ) -> "Recipe":
        """Return what each replica of a session is made of.

        Raises:
            ConfigError: a setting that names devices of this process.
        """
        if not (settings.device is None or isinstance(settings.device, str)):
            raise ConfigError(
                "device must be named for replicas in other processes, as 'gpu' or 'cpu:0'; got "
                f"{settings.device!r:.80}"
            )
        defaults = Settings()
        own = replace(settings, **{name: getattr(defaults, name) for name in APART})
        place = located(model)
        return cls(place, own, family, revision, chat_template, tuple(_files(Path(place))))

    def name(self, ray: Ray) -> str:
        """Return the name of its replicas, without their numbers: the one that is given, or one for what it is.

        Raises:
            ConfigError: kept replicas could not be told from others by a name that is made.
        """
        if ray.name is not None:
            return ray.name
        if ray.keep and (functions := list(self._functions())):
            raise ConfigError(
                "kept replicas are found again by their settings, and functions cannot be compared: give "
                f"rekindle.Ray(name=...), which stands for {' and '.join(functions)} too"
            )
        stem = re.sub(r"[^\w.]+", "-", Path(self.model).name)[:LONGEST_NAME].strip("-")
        return f"{stem}-{self.digest[:8]}"

    @property
    def digest(self) -> str:
        """A hash of all of it but for functions, and of the sources of Rekindle, which must understand each other."""
        skipped = set(self._functions())
        parts = [(field.name, getattr(self.settings, field.name)) for field in fields(Settings)]
        told = [(name, value) for name, value in parts if name not in skipped]
        rest = (self.model, self.revision, self.chat_template, self.files, _sources())
        return hashlib.sha256(repr((told, rest)).encode()).hexdigest()

    def _functions(self) -> Iterator[str]:
        """Yield the names of what holds functions."""
        for field in fields(Settings):
            if callable(getattr(self.settings, field.name)):
                yield field.name
        if self.family is not None:
            yield "family"
