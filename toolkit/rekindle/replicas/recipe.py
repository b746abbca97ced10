"""Picklable recipe of a session's replicas, and their name."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path

from rekindle.assembly.loading.identity import Identity, model_contents
from rekindle.core.content import Indigestible, content_digest
from rekindle.core.errors import ConfigError
from rekindle.core.store.sources import SOURCES
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.families.reading import Family
from rekindle.replicas.ray import Ray
from rekindle.settings.engine import Settings

SESSION_ONLY = ("replicas", "route", "max_waiting")
"""Settings of the session without effect on a replica."""
LONGEST_NAME = 40
CODE = "rekindle.replicas.opening"
"""The module whose imports are the code of a replica and of its sessions."""


def resolve_model(model: str | PathLike[str]) -> str:
    """Return the hub name or the absolute path of a model or a tower, for processes in other directories."""
    name = fspath(model)
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() and name.lower() != NAME else name


def content_of(checkpoint: Checkpoint) -> str:
    """Return the digest of all content of a model, the same for copies on other machines."""
    return content_digest(Identity(model_contents(checkpoint)).taken_by("replicas"))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The arguments of `open` in a replica.

    Attributes:
        model: the name of the model, or the absolute path of its files.
        settings: the settings of one replica.
        family, revision, chat_template: as in `open`.
        content: the digest of the model, from `content_of`.
        functions: the digest of the functions among the settings; empty for functions with unreadable content.
    """

    model: str
    settings: Settings
    family: Family | None = None
    revision: str | None = None
    chat_template: str | None = None
    content: str = ""
    functions: str = ""

    @classmethod
    def of(
        cls,
        model: str | PathLike[str],
        settings: Settings,
        family: Family | None,
        revision: str | None,
        chat_template: str | None,
        content: str,
    ) -> "Recipe":
        """Return the recipe of a session's replicas, given the digest of the model's content.

        Raises:
            ConfigError: the device is an object of this process.
        """
        if not (settings.device is None or isinstance(settings.device, str)):
            raise ConfigError(
                "device must be a name for replicas in other processes, such as 'gpu' or 'cpu:0'; got "
                f"{settings.device!r:.80}"
            )
        defaults = Settings()
        replica_settings = replace(settings, **{name: getattr(defaults, name) for name in SESSION_ONLY})
        if settings.mmproj is not None:
            replica_settings = replace(replica_settings, mmproj=resolve_model(settings.mmproj))
        recipe = cls(resolve_model(model), replica_settings, family, revision, chat_template, content)
        names = list(recipe._functions())
        functions = [family if name == "family" else getattr(replica_settings, name) for name in names]
        with suppress(Indigestible):  # then the name stands for the functions
            recipe = replace(recipe, functions=content_digest(functions))
        return recipe

    def name(self, ray: Ray) -> str:
        """Return the name of the replicas, without their numbers: from `ray`, or from the model and the digest.

        Raises:
            ConfigError: kept replicas without a name have a function as a setting; the digest cannot cover functions.
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
        """A hash of the recipe and of Rekindle's sources, since both ends must be compatible.

        The place of the model does not count, and functions do unless their content is unreadable.
        """
        skip = set(self._functions())
        settings = [(field.name, getattr(self.settings, field.name)) for field in fields(Settings)]
        comparable = [(name, value) for name, value in settings if name not in skip]
        rest = (self.content, self.chat_template, self.functions, SOURCES.digest(CODE))
        return hashlib.sha256(repr((comparable, rest)).encode()).hexdigest()

    def _functions(self) -> Iterator[str]:
        """Yield the names of arguments with functions."""
        for field in fields(Settings):
            if callable(getattr(self.settings, field.name)):
                yield field.name
        if self.family is not None:
            yield "family"
