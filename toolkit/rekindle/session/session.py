"""The session: what a user generates with, and controls the engine with."""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

import jax

from rekindle.chats import conversations
from rekindle.client.batches.loop import AsCompleted, Streams
from rekindle.client.batches.run import Errors, Outcome
from rekindle.client.engine_client import EngineClient
from rekindle.client.handle import Handle, Stream
from rekindle.client.prompts import (
    GENERATE_DEFAULTS,
    PROMPT_DEFAULTS,
    GenerateOptions,
    ManyPromptsOptions,
    Messages,
    OnePrompt,
    OnePromptOptions,
    PromptOptions,
    Prompts,
    RaisingMany,
    RaisingOne,
    Returning,
    ReturningMany,
    TokenIds,
    one_chat,
)
from rekindle.client.requests import Requests
from rekindle.core import markup
from rekindle.core.checkpoints.weights import Weights
from rekindle.core.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.waits import Waits
from rekindle.core.config import Settings
from rekindle.core.engine.conductor import Resume
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.engine.replicas import LaneState
from rekindle.core.engine.thread import EngineThread
from rekindle.core.errors import InvalidRequest, SessionError, not_installed
from rekindle.core.keywords import spelled_out
from rekindle.core.messages.record import MessageRecord, Observer, Pending
from rekindle.core.request.checks import preview
from rekindle.core.request.params import SamplingParams, check_keywords
from rekindle.core.scheduler.stats import SchedulerStats, Stats
from rekindle.core.store.restore_report import RestoreReport
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.mapping import pending as maps
from rekindle.notebook.board.dashboard import Dashboard
from rekindle.notebook.explorer import Explorer
from rekindle.notebook.showing import Showing, show
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation
from rekindle.scoring import embedding, judging, likelihood
from rekindle.session import prefix as prefixes
from rekindle.session.about import About, Memory
from rekindle.session.engine_view import EngineView
from rekindle.session.metrics import metrics_text
from rekindle.session.operations import InFlight, Operations
from rekindle.tools.tool import AnyTool
from rekindle.views.cache.view import CacheView, joined, view
from rekindle.views.tick_log import TickLog
from rekindle.views.trace import Trace
from rekindle.views.watching import Watching

if TYPE_CHECKING:
    from rekindle.server.running import PendingServer


class Session:
    """One open model, from `open`. Its methods may be used from any number of tasks, loops and threads at once.

    The sampling keywords are those of `rekindle.SamplingParams`.
    """

    def __init__(
        self,
        engine: EngineThread,
        loaded_engine: LoadedEngine,
        client: EngineClient,
        name: str = "",
        *,
        progress: bool = False,
    ):
        self._engine = engine
        self._name = name or loaded_engine.source
        self._loaded_engine = loaded_engine
        self._client = client
        self._requests = Requests(engine, loaded_engine, client, loaded_engine.defaults, Showing, progress)
        self._operations = Operations(engine, loaded_engine, client)
        self._dashboard: Dashboard | None = None
        with suppress(SessionError):  # an engine that has ended has nothing to log
            for lane, scheduler in enumerate(loaded_engine.schedulers):
                engine.watch(TickLog(partial(_stats_of, scheduler), lane if len(loaded_engine.lanes) > 1 else None))
        weakref.finalize(self, engine.stop)

    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: None = None, **ask: Unpack[OnePromptOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: None = None, progress: bool | None = None, **ask: Unpack[RaisingMany]
    ) -> Answers[Generation]: ...
    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: int, progress: bool | None = None, **ask: Unpack[RaisingOne]
    ) -> Answers[Generation]: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: int, progress: bool | None = None, **ask: Unpack[RaisingMany]
    ) -> Answers[Answers[Generation]]: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: None = None, progress: bool | None = None, **ask: Unpack[ReturningMany]
    ) -> Answers[Outcome]: ...
    @overload
    async def generate(
        self, prompt: OnePrompt | Prompts = None, *, n: int, progress: bool | None = None, **ask: Unpack[Returning[Any]]
    ) -> Answers[Any]: ...
    @awaitable("await session.generate(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def generate(
        self,
        prompt: Any = None,
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
        **ask: Unpack[GenerateOptions[Any]],
    ) -> Waits[Any]:
        """Generate to the end. Leaving the await early, by an interrupt or a timeout, cancels the request.

        An interrupt, which is a KeyboardInterrupt or asyncio's CancelledError, keeps what had come: its attribute
        `generation` has the text so far; that of a list is `finished`, with None for each that had not ended.

        A list of prompts is checked as a whole, in a thread of its own, before anything of it is computed.

        Args:
            prompt: text as it is, a list of {role, content} messages for the model's chat template, or a list of
                either, which gives a list.
            n: this many independent draws for each prompt, as a list; the first is that of the seed, if there is one.
                Draws need a temperature above 0: it is 1 if none is given and the model names none.
            errors: "raise" raises the first error of a list, and cancels the others; "return" puts each error in its
                place in the list, and goes on with the others.
            progress: draw a bar for a list that takes longer than a second: how many answers have ended, tokens per
                second, and the time that is left. The default is what `open` was told.
            token_ids: a prompt of token ids instead, or a list of such.
            tools: functions that the model may call: Python functions with annotations, whose docstrings tell the
                model what they do, or JSON schemas. They are not called here; see `run_tools`.
            tool_choice: "auto" lets the model choose; "required" holds its answer to calls, after its reasoning; the
                name of a tool holds it to one call of that; "none" does not tell it of the tools.
            chat_template_kwargs: further variables of the chat template, by name.
            continue_final_message: go on with the last message of the conversation, rather than answer it.
            add_special_tokens: False for a text that has its special tokens in it, as one of `session.render` has.
            Others: see `rekindle.SamplingParams`.

        Returns:
            A `Generation`; for a list of prompts, or if `n` is given, even 1, a list of them, which a cell shows as a
            table (`rekindle.Answers`); for both, a list of such lists.

        Raises:
            InvalidRequest: a prompt or keyword that cannot be served; PromptTooLong is one of them. For a list it is an
                InvalidBatch, which names all such prompts by index, and nothing of the list was computed.
            BatchFailed: one of a list failed later, as below; what had ended is in its `results`.
            RequestCancelled: somebody else cancelled it, as on the dashboard.
            ConstraintFailed: the constraint and other parameters leave no token to choose.
            LogitsNotFinite: the model computed NaN or infinity for it; other requests go on.
            WeightsChanged: `update_weights` was told to fail those under way.
            SessionError: the session is closed or its engine failed.

        Warns:
            ParametersIgnored: the temperature is given as 0, and beside it parameters that do nothing then.
        """
        return self._requests.all(prompt, ask, n, errors, progress)

    generate_sync = blocking(generate)

    @overload
    def as_completed(self, prompt: Prompts = None, **ask: Unpack[RaisingMany]) -> AsCompleted[Generation]: ...
    @overload
    def as_completed(self, prompt: Prompts = None, **ask: Unpack[ReturningMany]) -> AsCompleted[Outcome]: ...
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def as_completed(
        self, prompt: Prompts = None, *, errors: Errors = "raise", **ask: Unpack[ManyPromptsOptions]
    ) -> AsCompleted[Any]:
        """Return the answers of a list of prompts as each ends: `async for place, answer in session.as_completed(...)`.

        `place` is the prompt's index in the list. A blocking `for` does the same. As in `generate`, all prompts are
        checked before anything is computed, which is when the loop begins. Leaving the loop cancels the others, unless
        it has a name: then another loop can go on with it, and `del`, `close` or `contextlib.aclosing` cancels them.

        Args:
            prompt: a list of prompts; others are as in `generate`.
            errors: "raise" raises the first error, and cancels the others; "return" gives each error in its turn.

        Raises:
            InvalidRequest: as `generate`, or one prompt was given and no list.
            Others: as `generate` does for a list (raised by the loop).
        """
        return self._requests.as_completed(prompt, ask, errors)

    map = maps.map
    map_sync = blocking(map)  # noqa: A003

    @overload
    def stream(self, prompt: OnePrompt = None, **ask: Unpack[OnePromptOptions]) -> Stream: ...
    @overload
    def stream(self, prompt: Prompts = None, **ask: Unpack[ManyPromptsOptions]) -> Streams: ...
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def stream(self, prompt: Any = None, **ask: Unpack[GenerateOptions[Any]]) -> Any:
        """Return the pieces of one generation as they come: `async for piece in session.stream(...)`.

        Those of a list of prompts come from any of them, each with the place of its prompt in the list:
        `async for place, piece in session.stream([...])`. The list is checked as `as_completed` does, and the first
        error of it is raised.

        Leaving the loop early cancels the request, unless the stream has a name: then another loop can go on with it,
        and `del`, `close` or `contextlib.aclosing` cancels it. Arguments and errors are those of `generate`.
        """
        return self._requests.stream(prompt, ask)

    stream_sync = stream

    @overload
    async def show(self, prompt: OnePrompt = None, **ask: Unpack[OnePromptOptions]) -> Generation: ...
    @overload
    async def show(self, prompt: Prompts = None, **ask: Unpack[RaisingMany]) -> Answers[Generation]: ...
    @overload
    async def show(self, prompt: Prompts = None, **ask: Unpack[ReturningMany]) -> Answers[Outcome]: ...
    @awaitable("await session.show(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def show(self, prompt: Any = None, *, errors: Errors = "raise", **ask: Unpack[GenerateOptions[Any]]) -> Waits[Any]:
        """Generate to the end, and show the text in the output of the cell as it comes; in a terminal, print it.

        A list of prompts is a table whose rows fill side by side, each with its button; in a terminal, each answer is
        printed as it ends. At most 50 rows are drawn, and the others are counted.

        What stays in the output is what a cell shows of a generation, or of `Answers`. So what is returned shows
        nothing in this cell.

        Leaving the await early, by an interrupt or a timeout, cancels the request, and the text so far stays. Pressing
        its button raises nothing: what had come is returned, with "cancelled" as its finish reason. The button needs
        ipykernel 7 and asyncio; elsewhere its clicks would be heard only after the cell, so "interrupt kernel" is there
        to stop it. `show_sync` has none, since a cell that blocks hears no click. Arguments and errors are those of
        `generate`.
        """
        return show(self._requests, prompt, ask, errors)

    show_sync = blocking(show)

    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def submit(self, prompt: OnePrompt = None, **ask: Unpack[OnePromptOptions]) -> Handle:
        """Put a request on its way and return at once, with a handle to await, to stream, or to cancel.

        Raises:
            QueueFull: `max_waiting` requests are waiting already; `enqueue` waits for room instead.
            Others: as `generate`.
        """
        return self._requests.one(prompt, ask, wait=False)

    @awaitable("await session.submit_all(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def submit_all(
        self, prompt: OnePrompt | Prompts = None, *, n: int | None = None, **ask: Unpack[GenerateOptions[Any]]
    ) -> Waits[list[Handle]]:
        """Check prompts as a whole, put a request for each on its way, and return their handles.

        Nothing is computed unless all prompts can be served. If the waiting queue has room for the first request, the
        others wait outside for theirs. Leaving the await leaves nothing behind; after it, each handle is to be awaited,
        streamed or cancelled.

        Args:
            prompt: one prompt or a list, as in `generate`.
            n: this many draws for each prompt, as in `generate`.
            Others: as in `generate`.

        Returns:
            The handles of the draws of the first prompt, then those of the next.

        Raises:
            QueueFull: `max_waiting` requests are waiting already.
            Others: as `generate` does for invalid arguments.
        """
        return self._requests.submitted(prompt, ask, n)

    submit_all_sync = blocking(submit_all)

    def check_room(self) -> None:
        """Raise QueueFull if `submit` would now: for calls that would wait for room, such as `embed`."""
        self._client.check_room()

    @awaitable("await session.enqueue(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def enqueue(self, prompt: OnePrompt = None, **ask: Unpack[OnePromptOptions]) -> Waits[Handle]:
        """Wait until there is room in the waiting queue, put a request into it, and return its handle as `submit` does.

        Who waits first enters first. Leaving the wait leaves nothing behind. Arguments and errors are those of
        `generate`.
        """
        return self._requests.one(prompt, ask, wait=True).entered()

    enqueue_sync = blocking(enqueue)

    run_tools = awaitable("await session.run_tools(...)")(conversations.run_tools)
    run_tools_sync = blocking(run_tools)

    chat = conversations.chat

    prefix = prefixes.prefix
    prefix_sync = blocking(prefix)

    embed = awaitable("await session.embed(...)")(embedding.embed)
    embed_sync = blocking(embed)

    score = awaitable("await session.score(...)")(likelihood.score)
    score_sync = blocking(score)

    perplexity = awaitable("await session.perplexity(...)")(likelihood.perplexity)
    perplexity_sync = blocking(perplexity)

    classify = awaitable("await session.classify(...)")(judging.classify)
    classify_sync = blocking(classify)

    rerank = awaitable("await session.rerank(...)")(judging.rerank)
    rerank_sync = blocking(rerank)

    @awaitable("await session.update_weights(...)")
    def update_weights(self, weights: Weights, *, in_flight: InFlight = "finish") -> Waits[None]:
        """Use other weights of the same structure from now on. Nothing is compiled, and cached prefixes are dropped.

        Prefix handles stay usable, but hold nothing any more. Leaving the wait, by an interrupt or a timeout, keeps the
        old weights, unless the new ones are in use already.

        Args:
            weights: a model as `open` takes it, or arrays by their names in Hugging Face checkpoints. Over hosts it is
                a model that every process can open.
            in_flight: "finish" lets requests that have started end on the old weights first, and new ones wait for
                that; "fail" ends them with `WeightsChanged`.

        Raises:
            ModelError: the weights cannot be read, or have another structure; the old ones stay in use.
            HostRefused: another process cannot read them, or has others; the old ones stay in use.
            InvalidRequest: `weights` or `in_flight` is none of the accepted values.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.update_weights(weights, in_flight)

    update_weights_sync = blocking(update_weights)

    @awaitable("await session.save()")
    def save(self, *, progress: bool = True) -> Waits[int]:
        """Write all cached prefixes to disk now, for later sessions; the engine otherwise does so when it is idle.

        Args:
            progress: draw a progress bar while waiting.

        Returns:
            How many pages were written; pages that are on disk already are not written again. If they need more than
            `disk_cache_bytes`, the latest stay: `stats.scheduler.disk_pages` says how many are there.

        Raises:
            StorageError: some pages could not be written, or this session writes none.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.save(progress)

    save_sync = blocking(save)

    @awaitable("await session.precompiled()")
    def precompiled(self, *, progress: bool = True) -> Waits[None]:
        """Wait until every program that `precompile` asked for is ready, and stored for later sessions.

        Args:
            progress: draw a progress bar while waiting.

        Raises:
            SessionClosed: the session was closed meanwhile.
            Others: why a program could not be made.
        """
        return self._operations.precompiled(progress)

    precompiled_sync = blocking(precompiled)

    @awaitable("await session.pause()")
    def pause(self) -> Waits[None]:
        """Have no actor of the engine take another message.

        Requests can still be submitted; they wait until the engine goes on, as do `save`, `update_weights` and
        `prefix`. Leaving the wait for the pause leaves the engine paused.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.pause()

    pause_sync = blocking(pause)

    def resume(self) -> None:
        """Let the engine run by itself again. Returns at once, and may be called from any thread.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        self._engine.command(Resume())

    @awaitable("await session.step()")
    def step(self) -> Waits[MessageRecord | None]:
        """Have the actor that the oldest waiting message is for handle it. This pauses the engine, if it runs.

        Leaving the wait leaves the engine paused; the message stays where it is, unless it was taken by then.

        Returns:
            What was taken and what the actor said; None if no message waits.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.step()

    step_sync = blocking(step)

    @property
    def stuck(self) -> str | None:
        """The tick that the device has not finished within `watchdog_timeout`, and since when, in words; else None."""
        return self._engine.stuck

    @property
    def paused(self) -> bool:
        """Tell whether the engine was paused, and not resumed since."""
        return self._engine.paused

    @property
    def pending(self) -> Pending:
        """The messages that wait to be taken, by the name of the actor that is to take them.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._engine.pending

    def watch(self, see: Observer) -> Watching:
        """Have a function told of each message once an actor has handled it: `with session.watch(see): ...`.

        The function is called on the engine's thread, between two messages, so it has to be quick. If it raises, it is
        called no more, and its error comes out of the `with` statement. Entering it raises as `pending`.

        Raises:
            ConfigError: `see` is not a function.
        """
        return Watching(self._engine, see)

    def trace(self, *, most: int = 100_000) -> Trace:
        """Record what the engine does: `with session.trace() as t: ...`, then `t.timeline()` or `t.to_perfetto(path)`.

        Args:
            most: how many messages are kept; the oldest are dropped.

        Raises:
            SessionError: the session is closed or its engine failed (raised by the `with`).
        """
        return Trace(self._engine, most)

    def dashboard(self) -> Dashboard:
        """Show speed, slots, pages and requests in the output of a cell whose last line this is, as they change.

        The dashboard moves while cells run and while none does, and has buttons that pause the engine and cancel
        requests. It stops when its output is cleared, when the session ends, or at its `stop()`. A session has one:
        calling this again stops the former.
        """
        if self._dashboard is not None:
            self._dashboard.stop()
        self._dashboard = Dashboard(EngineView(self._engine, self._loaded_engine, self._client, self._name))
        return self._dashboard

    def explore(self, generation: Generation) -> Explorer:
        """Show a generation in the output of a cell whose last line this is, with a button for each token.

        Pressing one shows the alternatives that `logprobs` gave for its place, and pressing one of these goes on from
        there, as `generation.branch` does; what comes of it is shown below, and can be explored in turn.

        Raises:
            InvalidRequest: the generation has no alternatives, because it was made without `logprobs`.
        """
        return Explorer(generation)

    @property
    def requests(self) -> dict[int, Handle]:
        """The handles of all requests that have not ended, by the request ids of messages."""
        return self._client.under_way

    @property
    def restored(self) -> RestoreReport:
        """The programs and prefixes of earlier sessions that were found until now; programs load in the background."""
        return self._loaded_engine.programs.restored()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without the special tokens that the tokenizer puts around a whole prompt.

        Raises:
            InvalidRequest: the model has no tokenizer, or it is no text.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"encode() takes a text, got {preview(text)}; render() writes messages as one")
        return self._tokenizer().encode_chat(text)

    def decode(self, token_ids: TokenIds) -> str:
        """Return the text of token ids, special tokens included.

        Raises:
            InvalidRequest: the model has no tokenizer.
        """
        return self._tokenizer().decode(token_ids, skip_special_tokens=False)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[AnyTool] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """Return a conversation as the model's chat template writes it, which is what `generate` tokenizes.

        Args:
            messages, tools, chat_template_kwargs, continue_final_message: as in `generate`.

        Raises:
            InvalidRequest: the model has no chat template, or as `generate`.
        """
        options: PromptOptions[TokenIds] = {
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        return self._loaded_engine.preparer.rendered(one_chat(messages, options))

    @spelled_out(PromptOptions, PROMPT_DEFAULTS)
    def count_tokens(self, prompt: OnePrompt = None, **options: Unpack[PromptOptions[TokenIds]]) -> int:
        """Return the number of tokens that a prompt has for the model, special ones included; it may be too long.

        Args:
            prompt: text or messages, as in `generate`.
            **options: as the keywords of `generate` that say what the prompt is.

        Raises:
            InvalidRequest: as `generate`.
        """
        check_keywords(options, PromptOptions.__annotations__)
        return len(self._loaded_engine.preparer.token_ids(self._requests.prompt(prompt, options)))

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer; give token_ids instead of text, and read the token ids")
        return self.tokenizer

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer with its chat template; None for a model without one."""
        return self._loaded_engine.tokenizer

    @property
    def name(self) -> str:
        """The model, as `open` was given it."""
        return self._name

    @property
    def error(self) -> Exception | None:
        """The reason why the session serves no more, a `rekindle.SessionError`; None while it does."""
        return self._engine.error

    @property
    def cache(self) -> CacheView:
        """The content of the prefix cache, now."""
        tokenizer, page_bytes = self._loaded_engine.tokenizer, self._loaded_engine.limits.pool.page_bytes
        text_of = tokenizer.decode if tokenizer else lambda tokens: ""
        lanes = [
            scheduler.look(lambda trees: view(trees, page_bytes, text_of))
            for scheduler in self._loaded_engine.schedulers
        ]
        return joined(lanes).with_texts(text_of)

    @property
    def sampling_defaults(self) -> SamplingParams:
        """The sampling parameters of a call that gives none: our defaults, or what the model's authors recommend."""
        return SamplingParams.from_options({}, self._loaded_engine.defaults)

    @property
    def device(self) -> jax.Device:
        """The first of the devices that have the weights and the pages, and run the programs.

        Raises:
            InvalidRequest: they belong to replicas in other processes.
        """
        place = self._loaded_engine.lanes[0].place
        if place is None:
            raise InvalidRequest(
                f"the devices of this session, {self._loaded_engine.deployment}, are in other processes"
            )
        return place.first

    @property
    def settings(self) -> Settings:
        """All settings as they were chosen: those that `open` was given, and for the others what they have become."""
        return self._loaded_engine.settings

    @property
    def memory(self) -> Memory:
        """The memory of weights and pages, now."""
        return Memory.of(self._loaded_engine)

    @property
    def stats(self) -> Stats:
        """The counters of the engine, now."""
        return self._loaded_engine.stats()

    def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        name: str | None = None,
        api_keys: Sequence[str] = (),
        origins: Sequence[str] = (),
        grace: float = 10.0,
    ) -> "PendingServer":
        """Serve clients of OpenAI's API beside the cells: `server = await session.serve(port=0)`, or `async with` it.

        `server.url` says where, and `await server.close()` ends it, as does the end of the session. Its requests share
        the batches, the programs and the prefix cache of all others. `rekindle.server.app(session)` is the same for
        another ASGI server.

        Args:
            host: the address to listen at. The default is for clients on this machine alone; "0.0.0.0" is for all who
                reach it, who should then need an API key.
            port: 0 takes one that is free.
            name: what clients call the model; the default is what the session was opened as, of a path its last part.
            api_keys: of which a client has to give one; without any, none is needed.
            origins: of web pages that may ask from a browser, such as "https://example.org", or "*" for all.
            grace: seconds that requests under way have to end when the server is closed.

        Raises:
            ConfigError: the extra `rekindle[server]` is not installed, or an argument cannot be served (raised by the
                await if nothing can listen at the address).
            SessionError: the session is closed.
        """
        self._requests.check_engine()
        try:
            from rekindle.server.running import PendingServer
        except ImportError as error:
            raise not_installed("the server", "server", error) from error
        return PendingServer(self, self._operations.followed_by, host, port, name, api_keys, origins, grace)

    serve_sync = blocking(serve)

    def metrics_text(self) -> str:
        """Return the counters, and histograms of times, in the text form that Prometheus reads.

        Counters are those of `stats` under the same names, after "rekindle_". The times are seconds until a request
        left the queue, until its first token, between its tokens, and until its end.
        """
        return metrics_text(self.stats, self._client.latencies)

    @awaitable("await session.close()")
    def close(self) -> Waits[None]:
        """Stop the engine and free its device memory. Requests under way fail with `SessionClosed`. Idempotent.

        Cached pages that are not on disk yet are written first, for at most 3 seconds; a paused engine writes none.
        Servers of the session end too, and are waited for, each as long as its `grace` says.
        """
        return self._operations.close()

    close_sync = blocking(close)

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close_sync()

    def _about(self) -> About:
        return About(
            self._name, self._loaded_engine, self._engine.error, self.stuck or ("paused" if self.paused else None)
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        about = self._about()
        return markup.bundle(about.text(), about.html())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print all that is known where this is the result of a cell, and the repr where it is in a list."""
        printer.text(repr(self) if printer.indentation else self._about().text())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a session cannot be pickled or copied, because it has a device and threads: open one in each process, or "
            "serve one and ask it over HTTP. Its generations can be pickled"
        )

    def __repr__(self) -> str:
        return self._about().line()


def _stats_of(scheduler: LaneState) -> SchedulerStats:
    return scheduler.stats
