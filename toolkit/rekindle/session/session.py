"""The face: a session that generates."""

import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Unpack, overload

from rekindle import markup
from rekindle.concurrency.waits import awaited, blocked
from rekindle.engine.assembly import Assembly
from rekindle.engine.conductor import Pause, Resume, Step
from rekindle.engine.handled import Handled, Pending, See
from rekindle.engine.thread import EngineThread
from rekindle.errors import InvalidRequest, SessionError
from rekindle.models.checkpoint.weights import Weights
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.notebook.dashboard import Dashboard
from rekindle.notebook.live_text import show
from rekindle.request import SamplingParams, check_keywords
from rekindle.results import Generation
from rekindle.scheduler.stats import Stats, prompt_shares
from rekindle.session.callers import Callers
from rekindle.session.engine_view import EngineView
from rekindle.session.handle import Handle, Stream
from rekindle.session.prefix import PendingPrefix, Prefix
from rekindle.session.prompts import Ask, AskMany, AskOne, ManyPrompts, OnePrompt, PromptOptions, TokenIds
from rekindle.session.requests import Requests
from rekindle.session.upkeep import InFlight, Upkeep
from rekindle.store.restored import Restored
from rekindle.views.cache.view import CacheView, view
from rekindle.views.tick_log import TickLog
from rekindle.views.trace import Trace
from rekindle.views.watching import Watching


class Session:
    """One open model, from `open`. Its methods may be used from any number of tasks, loops and threads at once.

    The sampling keywords are those of `rekindle.request.SamplingParams`.

    Args:
        engine, assembly, callers: what serves it.
        name: the model as its user calls it.
    """

    def __init__(self, engine: EngineThread, assembly: Assembly, callers: Callers, name: str = ""):
        self._engine = engine
        self._name = name or assembly.source
        self._assembly = assembly
        self._callers = callers
        self._requests = Requests(engine, assembly, callers, assembly.defaults)
        self._upkeep = Upkeep(engine, assembly, callers)
        self._dashboard: Dashboard | None = None
        with suppress(SessionError):  # an engine that has ended has nothing to log
            engine.watch(TickLog(lambda: assembly.stats().scheduler))
        weakref.finalize(self, engine.stop)

    @overload
    async def generate(self, prompt: OnePrompt = None, *, n: None = None, **ask: Unpack[AskOne]) -> Generation: ...
    @overload
    async def generate(
        self, prompt: ManyPrompts = None, *, n: None = None, **ask: Unpack[AskMany]
    ) -> list[Generation]: ...
    @overload
    async def generate(self, prompt: OnePrompt = None, *, n: int, **ask: Unpack[AskOne]) -> list[Generation]: ...
    @overload
    async def generate(
        self, prompt: ManyPrompts = None, *, n: int, **ask: Unpack[AskMany]
    ) -> list[list[Generation]]: ...
    async def generate(self, prompt: Any = None, *, n: int | None = None, **ask: Unpack[Ask[Any]]) -> Any:
        """Generate to the end. Leaving the await early, by an interrupt or a timeout, cancels the request.

        Args:
            prompt: text as it is, a list of {role, content} messages for the model's chat template, or a list of
                either, which gives a list.
            n: this many independent draws for each prompt, as a list; the first is that of the seed, if there is one.
            token_ids: a prompt of token ids instead, or a list of such.
            tools: JSON schemas of functions, for the chat template.
            chat_template_kwargs: further variables of the chat template, by name.
            Others: see `rekindle.SamplingParams`.

        Returns:
            A `Generation`; a list of them for a list of prompts, or if `n` is given, even 1; for both, a list of lists.

        Raises:
            InvalidRequest: a prompt or keyword that cannot be served; PromptTooLong is one of them.
            RequestCancelled: somebody else cancelled it, as on the dashboard.
            WeightsChanged: `update_weights` was told to fail those under way.
            SessionError: the session is closed or its engine failed.
        """
        return await self._requests.all(prompt, ask, n).ended()

    @overload
    def generate_sync(self, prompt: OnePrompt = None, *, n: None = None, **ask: Unpack[AskOne]) -> Generation: ...
    @overload
    def generate_sync(
        self, prompt: ManyPrompts = None, *, n: None = None, **ask: Unpack[AskMany]
    ) -> list[Generation]: ...
    @overload
    def generate_sync(self, prompt: OnePrompt = None, *, n: int, **ask: Unpack[AskOne]) -> list[Generation]: ...
    @overload
    def generate_sync(
        self, prompt: ManyPrompts = None, *, n: int, **ask: Unpack[AskMany]
    ) -> list[list[Generation]]: ...
    def generate_sync(self, prompt: Any = None, *, n: int | None = None, **ask: Unpack[Ask[Any]]) -> Any:
        """Block as `generate` waits, with the same arguments and result."""
        return self._requests.all(prompt, ask, n).ended_blocking()

    def stream(self, prompt: OnePrompt = None, **ask: Unpack[AskOne]) -> Stream:
        """Return the pieces of one generation as they come: `async for piece in session.stream(...)`.

        Leaving the loop early cancels the request, unless the stream has a name: then another loop can go on with it,
        and `del` cancels it. Arguments and errors are those of `generate`.
        """
        return Stream(self._requests.one(prompt, ask, wait=True))

    def stream_sync(self, prompt: OnePrompt = None, **ask: Unpack[AskOne]) -> Stream:
        """Return the pieces as `stream` does, for a blocking loop: `for piece in session.stream_sync(...)`."""
        return self.stream(prompt, **ask)

    async def show(self, prompt: OnePrompt = None, **ask: Unpack[AskOne]) -> None:
        """Generate to the end, and show the text in the output of the cell as it comes; in a terminal, print it.

        What stays is what a cell shows of a generation. For the generation itself, `submit`, `display` and await:
        `request = session.submit(...); request.display(); answer = await request`.

        Leaving the await early, by an interrupt or a timeout, cancels the request, and the text so far stays. The same
        holds where its button is pressed, which raises nothing. A button needs ipykernel 7 and asyncio; elsewhere its
        clicks would be heard only after the cell, so "interrupt kernel" is there to stop it. Arguments and errors are
        those of `generate`.
        """
        await awaited(show(self._requests.one(prompt, ask, wait=True), "awaits"))

    def show_sync(self, prompt: OnePrompt = None, **ask: Unpack[AskOne]) -> None:
        """Block as `show` waits; there is no button, since no click is heard while a cell blocks."""
        blocked(show(self._requests.one(prompt, ask, wait=True), "blocks"))

    def submit(self, prompt: OnePrompt = None, **ask: Unpack[AskOne]) -> Handle:
        """Put a request on its way and return at once, with a handle to await, to stream, or to cancel.

        Raises:
            QueueFull: `max_waiting` requests are waiting already.
            Others as `generate`.
        """
        return self._requests.one(prompt, ask, wait=False)

    def prefix(
        self, prompt: OnePrompt = None, *, cache_salt: str = "", **options: Unpack[PromptOptions[TokenIds]]
    ) -> PendingPrefix:
        """Compute a prefix once and hold it: `doc = await session.prefix(text)`, or `async with` it.

        `await doc.generate(...)` continues it. Requests that begin the same find cached pages without this too; held
        ones are not evicted. Only whole pages are held.

        Args:
            cache_salt: as in `SamplingParams`, for the prefix and what continues it.
            Others: as in `generate`; sampling parameters are given to what continues the prefix.

        Raises:
            InvalidRequest: as `generate` (raised by the await), or the session was opened with `prefix_cache=False`.
        """
        if not self._assembly.limits.prefix_cache:
            raise InvalidRequest("this session keeps no prefixes: it was opened with prefix_cache=False")
        check_keywords(options, ("cache_salt", *PromptOptions.__annotations__))
        checked = self._requests.prompt(prompt, options)
        return PendingPrefix(checked, self._requests.continuing(checked, cache_salt))

    def prefix_sync(
        self, prompt: OnePrompt = None, *, cache_salt: str = "", **options: Unpack[PromptOptions[TokenIds]]
    ) -> Prefix:
        """Block as the await of `prefix` does, with the same arguments and result."""
        return self.prefix(prompt, cache_salt=cache_salt, **options).wait()

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
            InvalidRequest: `weights` or `in_flight` is nothing of what is accepted.
            SessionError: the session is closed or its engine failed.
        """
        await awaited(self._upkeep.update_weights(weights, in_flight))

    def update_weights_sync(self, weights: Weights, *, in_flight: InFlight = "finish") -> None:
        """The blocking twin of `update_weights`."""
        blocked(self._upkeep.update_weights(weights, in_flight))

    async def save(self, *, progress: bool = True) -> int:
        """Write all cached prefixes to disk now, for later sessions; otherwise it is done in idle moments.

        Args:
            progress: draw a progress bar while waiting.

        Returns:
            How many pages were written; those that are on disk already are not written again. Of more than
            `disk_cache_bytes` hold, the latest stay: `stats.scheduler.disk_pages` says how many are there.

        Raises:
            StorageError: some of them could not be written, or this session writes none.
            SessionError: the session is closed or its engine failed.
        """
        return await awaited(self._upkeep.save(progress))

    def save_sync(self, *, progress: bool = True) -> int:
        """The blocking twin of `save`."""
        return blocked(self._upkeep.save(progress))

    async def precompiled(self, *, progress: bool = True) -> None:
        """Wait until every program that `precompile` asked for is ready, and stored for later sessions.

        Args:
            progress: draw a progress bar while waiting.

        Raises:
            SessionClosed: the session was closed meanwhile.
            Others: why a program could not be made.
        """
        await awaited(self._upkeep.precompiled(progress))

    def precompiled_sync(self, *, progress: bool = True) -> None:
        """The blocking twin of `precompiled`."""
        blocked(self._upkeep.precompiled(progress))

    async def pause(self) -> None:
        """Have no actor of the engine take another message. Requests can still be submitted; they wait.

        So do `save`, `update_weights` and `prefix`, until it goes on. Leaving this wait leaves the engine paused.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        await awaited(self._upkeep.command(Pause()))

    def pause_sync(self) -> None:
        """The blocking twin of `pause`."""
        blocked(self._upkeep.command(Pause()))

    def resume(self) -> None:
        """Let the engine run by itself again. Returns at once, and may be called from any thread.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        self._engine.command(Resume())

    async def step(self) -> Handled | None:
        """Have the oldest message that waits in the engine taken by the actor that it is for, and pause, if need be.

        Leaving the wait leaves the engine paused; the message stays where it is, unless it was taken by then.

        Returns:
            What was taken and said; None if no message waits.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return await awaited(self._upkeep.command(Step()))

    def step_sync(self) -> Handled | None:
        """The blocking twin of `step`."""
        return blocked(self._upkeep.command(Step()))

    @property
    def paused(self) -> bool:
        """Whether it was paused, and not resumed since."""
        return self._engine.paused

    @property
    def pending(self) -> Pending:
        """The messages that wait to be taken, by the name of the actor that is to take them.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._engine.pending

    def watch(self, see: See) -> Watching:
        """Have a function told of each message once an actor has handled it: `with session.watch(see): ...`.

        It is called on the engine's thread, between two messages, so it has to be quick. If it raises, it is called no
        more, and its error comes out of the `with` statement. Entering it raises as `pending`.

        Raises:
            ConfigError: `see` is no function.
        """
        return Watching(self._engine, see)

    def trace(self, *, most: int = 100_000) -> Trace:
        """Record what the engine does: `with session.trace() as t: ...`, then `t.timeline()` or `t.to_perfetto(path)`.

        Args:
            most: messages that are kept; of more, the oldest are dropped.

        Raises:
            SessionError: the session is closed or its engine failed (raised by the `with`).
        """
        return Trace(self._engine, most)

    def dashboard(self) -> Dashboard:
        """Speed, slots, pages and requests, moving in the output of a cell whose last line this is.

        It moves while cells run and while none does, and has buttons that pause the engine and cancel requests. It
        stops when its output is cleared, when the session ends, or at its `stop()`. A session has one: calling this
        again stops the former.
        """
        if self._dashboard is not None:
            self._dashboard.stop()
        self._dashboard = Dashboard(EngineView(self._engine, self._assembly, self._callers, self._name))
        return self._dashboard

    @property
    def requests(self) -> dict[int, Handle]:
        """The handles of all requests that have not ended, by the ids that messages know them by."""
        return self._callers.under_way

    @property
    def restored(self) -> Restored:
        """What was found of earlier sessions, until now: programs are loaded in the background."""
        return self._assembly.restored()

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
        if self._assembly.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer; it is asked by token ids alone")
        return self._assembly.tokenizer

    @property
    def cache(self) -> CacheView:
        """What the prefix cache holds, now."""
        tokenizer, page_bytes = self._assembly.tokenizer, self._assembly.limits.page_bytes
        text_of = tokenizer.decode if tokenizer else lambda tokens: ""
        seen: CacheView = self._assembly.look(lambda tree: view(tree, page_bytes, text_of))
        return seen

    @property
    def sampling_defaults(self) -> SamplingParams:
        """The sampling parameters of a call that gives none: ours, or what the model's authors recommend."""
        return SamplingParams.from_options(self._assembly.defaults)

    @property
    def stats(self) -> Stats:
        """What the engine has done and holds, now."""
        return self._assembly.stats()

    async def close(self) -> None:
        """Stop the engine and free its device memory. Requests under way fail with `SessionClosed`. Idempotent.

        What is cached and not on disk yet is written first, as far as that takes seconds; not while it is paused.
        """
        await awaited(self._upkeep.close())

    def close_sync(self) -> None:
        """The blocking twin of `close`."""
        blocked(self._upkeep.close())

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
        if self._engine.error is not None:
            return markup.bundle(
                repr(self), markup.card("Session", self._name, markup.passage(str(self._engine.error)))
            )
        counts = self.stats.scheduler
        known = {
            "computes in": self._assembly.dtype,
            "engine": "paused" if self.paused else None,
            "running": f"{counts.running:,}",
            "waiting": f"{counts.waiting:,}",
            "pages free": f"{counts.free_pages:,} of {counts.pages:,}",
            "generated": markup.counted(counts.generated_tokens, "token"),
        }
        shown = markup.card("Session", self._name, markup.facts(known), prompt_shares(counts))
        return markup.bundle(repr(self), shown)

    def __repr__(self) -> str:
        if self._engine.error is not None:
            return f"<rekindle.Session {self._name}: {self._engine.error}>"
        counts, paused = self.stats.scheduler, "paused, " if self.paused else ""
        return (
            f"<rekindle.Session {self._name} ({self._assembly.dtype}): {paused}{counts.running} running, "
            f"{counts.waiting} waiting, {counts.free_pages} of {counts.pages} pages free>"
        )
