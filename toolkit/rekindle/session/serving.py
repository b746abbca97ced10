"""A server of several models: `rekindle.serve`."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from rekindle.assembly.building import open_model
from rekindle.assembly.devices import places_of
from rekindle.assembly.loading.budget import KEPT_FREE
from rekindle.assembly.loading.choosing import AUTO, choose
from rekindle.assembly.loading.planning import fewest, plan
from rekindle.assembly.loading.stores import store_directory
from rekindle.client.concurrency.twins import blocking
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import silent
from rekindle.core.errors import ConfigError, not_installed
from rekindle.core.keywords import spelled_out
from rekindle.replicas.ray import Ray
from rekindle.session import opening
from rekindle.session.session import Session
from rekindle.settings.engine import Settings, SettingsOptions
from rekindle.settings.server import SERVER_DEFAULTS, ServerOptions, ServerSettings

if TYPE_CHECKING:
    from rekindle.server.listening.running import PendingServer

KEEP_ALIVE_SECONDS: Final = 300.0
"""The default time until an idle model closes."""
ROOM: Final = 1 - 1 / KEPT_FREE
"""The part of the devices' memory for all models of a server."""

ModelOptions = str | PathLike[str] | Mapping[str, Any]
"""A model as in `open`, or the keywords of `open` with `model` among them, and perhaps `aliases`: further names."""


@dataclass(frozen=True, slots=True)
class UnopenedModel:
    """A model of a server that is not open.

    Attributes:
        options: the keywords of `open`.
        aliases: the other names of the model for clients.
    """

    options: Mapping[str, Any]
    aliases: Sequence[str] = ()

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the adapters to open with the model."""
        return list(self.options.get("adapters", ()))

    def share(self) -> float:
        """Return the part of the devices' memory in the plan of the model. Downloads a model on the hub.

        Raises:
            ModelError: the model cannot be opened.
            ConfigError: the settings do not fit the model.
        """
        settings = Settings(
            **{name: self.options[name] for name in SettingsOptions.__annotations__.keys() & self.options}
        )
        if isinstance(settings.replicas, Ray):
            return 0.0  # its devices belong to other processes
        names = ("family", "revision", "chat_template")
        family, revision, template = (self.options.get(name) for name in names)
        model = self.options["model"]
        model = choose(settings).model if model == AUTO else model
        checkpoint = open_model(model, silent, settings, family, revision, template)
        place = fewest(checkpoint, settings, places_of(settings))
        blueprint = plan(checkpoint, settings, place, store_directory(settings.restore), compiles=False)
        return blueprint.budget.share(blueprint.limits.pool.bytes)

    async def open(self) -> Session:
        """Open the model."""
        return await opening.open(**{"progress": False, **self.options})


@spelled_out(ServerOptions, SERVER_DEFAULTS)
def serve(
    models: Mapping[str, ModelOptions], *, keep_alive: float = KEEP_ALIVE_SECONDS, **settings: Unpack[ServerOptions]
) -> "PendingServer":
    """Serve several models: `server = await rekindle.serve({"small": ..., "large": ...})`, or `async with` it.

    A model opens for its first request, warm from disk after an earlier life, and closes when no request has used it
    for `keep_alive` seconds, or when another model needs its memory. The memory plans of the models decide: if the next
    one does not fit beside the open ones, those idle for the longest time close first, and a busy one finishes its
    requests before it closes.

    Args:
        models: a model as in `open`, or a mapping with the keywords of `open`, by the names for clients. `aliases` in a
            mapping is a list of further names of the model; answers have the first name.
        keep_alive: the seconds without a request until a model closes; infinity for never.
        **settings: the address, keys, certificate and so on: see `rekindle.ServerSettings`.

    Returns:
        A `PendingServer`: its await, or `async with`, starts the server and returns it.

    Raises:
        ConfigError: the extra `rekindle-llm[server]` is not installed, an argument is invalid, or (raised by the await)
            the server cannot listen on the address. A wrong setting of a model is an error of its first request.
    """
    checked = ServerSettings.of(settings)
    _check_keep_alive(keep_alive)
    sources = {name: _source(name, options) for name, options in models.items()}
    _check_names(sources)
    if not sources:
        raise ConfigError('models must map at least one name to a model, such as {"small": "smollm2-135m-instruct"}')
    try:
        from rekindle.server.listening.running import PendingServer
        from rekindle.server.models.pool import ModelPool
    except ImportError as error:
        raise not_installed("the server", "server", error) from error
    return PendingServer(ModelPool(sources, keep_alive, ROOM), checked, _follow_nothing)


serve_sync = blocking(serve)


def models_in(path: str | PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return the models in a TOML file: a table for each model, by its name for clients.

    Relative paths of models and adapters are relative to the file. They are absolute in the result, since a model opens
    later, perhaps in another working directory.

    Raises:
        ConfigError: the file cannot be read, or it contains something else.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} must be a TOML file with a table for each model: {error}") from error
    folder = Path(path).absolute().parent
    for name, table in content.items():
        if not isinstance(table, dict) or not isinstance(table.get("model"), str) or not table["model"]:
            raise ConfigError(f'[{name}] in {str(path)!r} must be a table with model = "..."; got {table!r:.80}')
        table["model"] = _beside(folder, table["model"])
        if isinstance(table.get("adapters"), dict):
            table["adapters"] = {each: _beside(folder, where) for each, where in table["adapters"].items()}
    return content


def _beside(folder: Path, name: Any) -> Any:
    """Return a path relative to a folder as an absolute path; other names of models stay."""
    return str(folder / name) if isinstance(name, str) and os.path.exists(folder / name) else name


def _check_keep_alive(keep_alive: object) -> None:
    if not isinstance(keep_alive, int | float) or not keep_alive >= 0:
        raise ConfigError(f"keep_alive must be a number of seconds from 0, got {keep_alive!r:.80}")


def _check_names(sources: Mapping[str, UnopenedModel]) -> None:
    """Raise ConfigError for an alias or adapter with the name of a model, or of an adapter of another model."""
    names, owners = set(sources), dict[str, str]()
    for base, source in sources.items():
        for alias in source.aliases:
            if alias in names:
                raise ConfigError(f"the alias {alias!r} of {base!r} is the name of a model already: give another")
            names.add(alias)
    for base, source in sources.items():
        for name in source.adapters:
            if name in names:
                raise ConfigError(f"the adapter {name!r} of {base!r} has the name of a model: give it another")
            if name in owners:
                raise ConfigError(f"{owners[name]!r} and {base!r} both have an adapter {name!r}: give one another name")
            owners[name] = base


def _source(name: object, options: object) -> UnopenedModel:
    """Return a source; raise ConfigError for options of the wrong type."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"names of models must be non-empty strings, got {name!r:.80}")
    if isinstance(options, str | PathLike):
        return UnopenedModel({"model": options})
    if not isinstance(options, Mapping) or "model" not in options:
        raise ConfigError(
            f'{name!r} must be a model, or keywords of open() such as {{"model": "owner/name", "dtype": "bfloat16"}}; '
            f"got {options!r:.80}"
        )
    aliases = options.get("aliases", ())
    if not isinstance(aliases, list | tuple) or not all(isinstance(each, str) and each for each in aliases):
        raise ConfigError(f"aliases of {name!r} must be a list of non-empty strings, got {aliases!r:.80}")
    options = {keyword: value for keyword, value in options.items() if keyword != "aliases"}
    try:
        opening.open(**options)  # checks the keywords, without opening
    except ConfigError as error:
        raise ConfigError(f"{name!r}: {error}") from error
    return UnopenedModel(options, tuple(dict.fromkeys(aliases)))


def _follow_nothing(stop: Callable[[], None], closed: Feed[None]) -> None:
    """Do nothing: a server of several models outlives each of their sessions."""
