"""Session: one open model, with methods for generation and control of its engine."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack, overload

import jax

from rekindle import markup
from rekindle.assembly.replicas import LaneState
from rekindle.client.adapters import AdapterInfo
from rekindle.client.batches.loop import AsCompleted, BatchStreams
from rekindle.client.batches.run import Errors, Outcome
from rekindle.client.calls.options import (
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
)
from rekindle.client.concurrency.twins import awaitable, blocking, later
from rekindle.client.engine_client import OpenEngine
from rekindle.client.handle import Handle, Stream
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits, blocked, unless
from rekindle.core.cures import cured
from rekindle.core.engine.conductor import Resume
from rekindle.core.errors import InvalidRequest, SessionError, not_installed
from rekindle.core.keywords import spelled_out
from rekindle.core.layer_parts import Part
from rekindle.core.messages import InFlightPolicy
from rekindle.core.messages.record import MessageRecord, Observer, Pending
from rekindle.core.request.activations.steering import Patch, Steering, patches, steerings
from rekindle.core.request.checks import preview
from rekindle.core.request.params import check_keywords
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.weights import Weights
from rekindle.notebook.showing import NotebookDrawer, show
from rekindle.results.answers import Answers
from rekindle.results.facts.restored import RestoreReport
from rekindle.results.facts.settings import SamplingParams, Settings
from rekindle.results.facts.stats import Stats
from rekindle.results.generation import Generation
from rekindle.session.about import ASLEEP, Memory, SessionCard, facts_of
from rekindle.session.fingerprint import base_of, fingerprint_of
from rekindle.session.operations.adapters import AdapterOperations, AdapterSource
from rekindle.session.operations.engine import Operations
from rekindle.session.operations.origin import Origin
from rekindle.settings.server import SERVER_DEFAULTS, ServerOptions, ServerSettings
from rekindle.tools.tool import AnyTool
from rekindle.views.tick_log import TickLog

if TYPE_CHECKING:
    from rekindle.chats import conversations
    from rekindle.formats.checkpoints.model_facts import ModelFacts
    from rekindle.formats.saving.saving import SavedFormat, SavedModel
    from rekindle.mapping import pending as maps
    from rekindle.notebook.board.dashboard import Dashboard
    from rekindle.notebook.explorer import Explorer
    from rekindle.results.inspection.activations import Activations
    from rekindle.results.inspection.lens import LogitLens
    from rekindle.scoring import classifying, deciding, embedding, filling, likelihood, ranking, tagging
    from rekindle.server.listening.running import PendingServer
    from rekindle.session import bench as benching
    from rekindle.session import comparing
    from rekindle.session import prefix as prefixes
    from rekindle.session.engine_view import EngineView
    from rekindle.session.operations import explaining
    from rekindle.session.operations.inspecting import Inspections
    from rekindle.views.cache.view import CacheView
    from rekindle.views.trace import Trace
    from rekindle.views.watching import Watching

    def _first() -> tuple[object, ...]:
        """Import modules for mypy, which reads the imports of functions before those of `if TYPE_CHECKING`."""
        from rekindle.chats import conversations
        from rekindle.session import comparing, prefix
        from rekindle.session.operations import explaining

        return conversations, comparing, prefix, explaining


_UNLISTED: Final = {"asleep", "check_room", "enqueue", "enqueue_sync", "error", "metrics_text", "view"}
"""Public names that completion leaves out."""


_CURES: Final = {
    ("ask", "chat_completion", "complete", "completion", "create_chat_completion", "create_completion", "invoke",
     "query", "run"): 'answer = await session.generate([{"role": "user", "content": "..."}]), or session.chat()',
    ("say", "send", "send_message", "reply"): 'chat = session.chat(), then await chat.say("...")',
    ("history", "messages", "conversation"): "a conversation is kept by chat = session.chat(), as chat.messages",
    ("astream", "generate_stream", "stream_chat", "stream_generate"): "async for piece in session.stream(prompt)",
    ("abatch", "batch", "generate_batch"): "a list of prompts is a batch: await session.generate([...])",
    ("create_embedding", "embeddings", "encode_text"): "await session.embed(texts)",
    ("tokenize",): "session.encode(text) gives token ids",
    ("detokenize", "batch_decode"): "session.decode(token_ids) gives a text",
    ("apply_chat_template",): "session.render(messages) gives the text of a conversation",
    ("config", "model_config", "hf_config"): "session.model has facts about the model, session.settings those of open",
    ("sampling_params", "generation_config", "default_sampling_params"): "they are session.sampling_defaults",
    ("model_name", "model_id", "path"): "it is session.name",
    ("vocab_size", "n_vocab", "eos_token", "eos_token_id", "chat_template"): "see session.tokenizer",
    ("n_ctx", "max_model_len", "max_context"): "it is session.settings.max_context",
    ("load_adapter", "load_lora", "load_lora_adapter"): "await session.add_adapter(name, directory)",
    ("clear", "clear_history", "reset", "new_chat"): "each session.chat() is a new conversation",
    ("exit", "quit", "shutdown", "stop", "unload"): "await session.close()",
    ("completions", "responses"): "OpenAI's API is served by server = await session.serve()",
    ("cuda", "to"): 'the device is chosen by rekindle.open(model, device="gpu")',
    ("eval", "half", "train"): "a session only computes answers: leave it out",
    ("version",): "it is rekindle.__version__",
}  # fmt: skip
"""Attributes of objects with a model in other libraries."""
_CALL: Final = 'answer = await session.generate("..."), or session.chat()'


@cured(_CURES, call=_CALL)
class Session:
    """One open model, created by `rekindle.open`.

    All methods are thread-safe and may be called from any number of tasks, event loops and threads at once. Each
    awaitable method has a blocking twin with the suffix `_sync`. Calls that generate accept the sampling parameters of
    `rekindle.SamplingParams` as keyword arguments.

    A wait can be left early: by an interrupt of the cell, a timeout scope, or the cancellation of its task. This
    cancels the requests of the call, unless the method's documentation says otherwise.
    """

    def __init__(
        self,
        engine: OpenEngine,
        name: str = "",
        *,
        progress: bool = False,
        origin: Origin | None = None,
    ):
        self._engine, self._origin = engine, origin
        facts, weights = engine.facts, engine.client.weights
        self._name = name or facts.source
        self._requests = Requests(engine, facts.defaults, NotebookDrawer, progress, name=self._name)
        self._operations = Operations(engine)
        self._adapters = AdapterOperations(engine)
        self._dashboard: Dashboard | None = None
        self._fingerprint_base = ""
        weights.version = facts.weights_version
        weights.digests.setdefault(weights.version, facts.weights_digest)
        self._model_facts: ModelFacts | None = None
        with suppress(SessionError):  # an ended engine has nothing to log
            for lane, scheduler in enumerate(facts.schedulers):
                engine.thread.watch(TickLog(partial(_stats_of, scheduler), lane if len(facts.lanes) > 1 else None))
        weakref.finalize(self, engine.thread.stop)

    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: None = None, **options: Unpack[OnePromptOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: None = None, progress: bool | None = None, **options: Unpack[RaisingMany]
    ) -> Answers[Generation]: ...
    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: int, progress: bool | None = None, **options: Unpack[RaisingOne]
    ) -> Answers[Generation]: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: int, progress: bool | None = None, **options: Unpack[RaisingMany]
    ) -> Answers[Answers[Generation]]: ...
    @overload
    async def generate(
        self, prompt: Prompts = None, *, n: None = None, progress: bool | None = None, **options: Unpack[ReturningMany]
    ) -> Answers[Outcome]: ...
    @overload
    async def generate(
        self,
        prompt: OnePrompt | Prompts = None,
        *,
        n: int,
        progress: bool | None = None,
        **options: Unpack[Returning[Any]],
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
        **options: Unpack[GenerateOptions[Any]],
    ) -> Waits[Any]:
        """Generate an answer to a prompt, or to each prompt of a list, and wait for its end.

        While the waiting queue is full, the call waits for room; it never raises QueueFull. All prompts of a list are
        checked in a separate thread before the first is computed.

        Leaving the wait early, by an interrupt or a timeout, cancels the requests. An interrupt (KeyboardInterrupt or
        asyncio.CancelledError) carries the partial result: its attribute `generation` is the partial generation. For a
        list of prompts, its attribute `finished` has the finished answers, with None in place of the others.

        Args:
            prompt: text, used without a chat template; a conversation as a list of {role, content} messages; or a list
                of either, which returns a list.
            n: the number of independent samples per prompt, returned as a list. With a seed, the first sample equals
                the answer without `n`. Samples differ only at a temperature above 0; with several samples, it defaults
                to 1 if neither the call nor the model sets it.
            errors: "raise" raises the first error of a list and cancels its other requests; "return" puts each error
                into the list in place of its answer.
            progress: whether to draw a progress bar for a list that takes longer than a second. The bar shows finished
                answers, tokens per second and the remaining time. The default is the `progress` of `open`.
            token_ids: the token ids of the prompt, in place of text; or a list of the ids of several prompts.
            tools: functions that the model may call: annotated Python functions, with docstrings as descriptions, or
                JSON schemas. `generate` never calls them; `run_tools` does.
            tool_choice: "auto" lets the model choose; "required" forces at least one call, after any reasoning; the
                name of a tool forces one call of this tool; "none" omits the tools from the prompt.
            parallel_tool_calls: whether the answer may have several tool calls. If False, it ends after the first one;
                in a form with a list of calls, after the list, unless `tool_choice` forces a call.
            tool_grammars: grammars in llguidance's variant of Lark, by the name of a tool with one text as argument. A
                required call of the tool follows its grammar.
            chat_template_kwargs: additional variables of the chat template, by name.
            continue_final_message: whether to continue the last message of the conversation instead of answering it.
            add_special_tokens: whether the tokenizer adds its special tokens to text. Pass False for text with special
                tokens, such as the output of `session.render`.
            Others: see `rekindle.SamplingParams`.

        Returns:
            A `Generation`. For a list of prompts, or with `n` (even 1), a list of them (`rekindle.Answers`, displayed
            as a table); for a list of prompts with `n`, a list of lists.

        Raises:
            InvalidRequest: a prompt or option is invalid; PromptTooLong is a subclass. For a list, the subclass
                InvalidBatch has the error of each bad prompt by index, and nothing was computed.
            BatchFailed: a request of a list failed later, for one of the reasons below; `results` has the finished
                answers.
            RequestCancelled: the request was cancelled elsewhere, such as on the dashboard.
            ConstraintFailed: the constraint and other parameters leave no token to choose.
            LogitsNotFinite: the model computed NaN or infinity for this request; other requests continue.
            OutOfMemory: the device had no memory for a step of this request; other requests continue.
            WeightsChanged: `update_weights` or `sleep` ended the request.
            NoWeights: the session was opened with `weights=None`, and no `update_weights` followed.
            SessionError: the session is closed or its engine failed.

        Warns:
            ParametersIgnored: the temperature is 0, so other parameters have no effect on greedy decoding.
        """
        return self._requests.all(prompt, options, n, errors, progress)

    generate_sync = blocking(generate)

    @overload
    def as_completed(self, prompt: Prompts = None, **options: Unpack[RaisingMany]) -> AsCompleted[Generation]: ...
    @overload
    def as_completed(self, prompt: Prompts = None, **options: Unpack[ReturningMany]) -> AsCompleted[Outcome]: ...
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def as_completed(
        self, prompt: Prompts = None, *, errors: Errors = "raise", **options: Unpack[ManyPromptsOptions]
    ) -> AsCompleted[Any]:
        """Return an iterator over the answers of a list of prompts, in order of completion.

        Use `async for index, answer in session.as_completed(prompts)`, or a blocking `for`; `index` is the position of
        the prompt in the list. The requests are submitted when the loop begins, after a check of all prompts; while the
        waiting queue is full, they wait for room.

        Leaving the loop early cancels the unfinished requests, unless a variable still refers to the iterator. Another
        loop can then continue it; `del`, `close` or `contextlib.aclosing` cancels its requests.

        Args:
            prompt: a list of prompts.
            errors: "raise" raises the first error and cancels the other requests; "return" yields each error in place
                of its answer.
            Others: as in `generate`.

        Raises:
            InvalidRequest: an option is invalid, or `prompt` is not a list.
            Others: as in `generate` for a list, raised by the loop.
        """
        return self._requests.as_completed(prompt, options, errors)

    @overload
    def stream(self, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Stream: ...
    @overload
    def stream(self, prompt: Prompts = None, **options: Unpack[ManyPromptsOptions]) -> BatchStreams: ...
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def stream(self, prompt: Any = None, **options: Unpack[GenerateOptions[Any]]) -> Any:
        """Return the stream of an answer's pieces: `async for piece in session.stream(...)`, or a blocking `for`.

        The request is submitted at once; while the waiting queue is full, it waits for room. For a list of prompts, the
        stream yields the pieces of all requests as they arrive, each with the index of its prompt:
        `async for index, piece in session.stream([...])`. These requests are submitted when the loop begins, after a
        check of all prompts.

        Leaving the loop early cancels the requests, unless a variable still refers to the stream. Another loop can then
        continue it; `del`, `close` or `contextlib.aclosing` cancels the requests.

        Args:
            prompt: one prompt or a list, as in `generate`.
            Others: as in `generate`.

        Raises:
            InvalidRequest: an option or the form of the prompt is invalid.
            Others: as in `generate`, raised by the loop. For a list, the first error ends the loop.
        """
        return self._requests.stream(prompt, options)

    stream_sync = stream

    @overload
    async def show(self, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Generation: ...
    @overload
    async def show(self, prompt: Prompts = None, **options: Unpack[RaisingMany]) -> Answers[Generation]: ...
    @overload
    async def show(self, prompt: Prompts = None, **options: Unpack[ReturningMany]) -> Answers[Outcome]: ...
    @awaitable("await session.show(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def show(
        self, prompt: Any = None, *, errors: Errors = "raise", **options: Unpack[GenerateOptions[Any]]
    ) -> Waits[Any]:
        """Generate an answer, and show its text in the notebook cell as it arrives. In a terminal, print it.

        A list of prompts is shown as a table with one live row and cancel button per prompt, at most 50 rows. In a
        terminal, each answer is printed when it ends. At the end, the output becomes the card of the returned object.
        The object therefore shows nothing as the result of the same cell.

        Leaving the wait early, by an interrupt or a timeout, cancels the requests and keeps the text in the cell. The
        cancel button raises no error: the call returns the partial generation with "cancelled" as finish reason.
        Buttons need ipykernel 7 and asyncio; otherwise the kernel receives clicks only after the cell, so use
        "interrupt kernel". `show_sync` has no button for the same reason.

        Args:
            prompt: one prompt or a list, as in `generate`.
            errors: as in `generate`.
            Others: as in `generate`.

        Returns:
            A `Generation`, or `Answers` for a list, as in `generate`.

        Raises:
            Others: as in `generate`.
        """
        return show(self._requests, prompt, options, errors)

    show_sync = blocking(show)

    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def submit(self, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Handle:
        """Submit a request, and return its handle at once, to await, stream or cancel.

        Args:
            prompt: text or messages, as in `generate`.
            Others: as in `generate`.

        Raises:
            QueueFull: `max_waiting` requests of this priority, or more urgent, are waiting already. `enqueue` waits for
                room instead.
            InvalidRequest: an option or the form of the prompt is invalid.
            SessionError: the session is closed or its engine failed.
            Others: as in `generate`, raised by the handle.
        """
        return self._requests.submit_one(prompt, options, wait=False)

    @awaitable("await session.submit_all(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def submit_all(
        self, prompt: OnePrompt | Prompts = None, *, n: int | None = None, **options: Unpack[GenerateOptions[Any]]
    ) -> Waits[list[Handle]]:
        """Check all prompts, then submit a request for each, and return the handles.

        The call waits only for the checks, in a separate thread. No request is submitted unless all prompts are valid.
        The waiting queue needs room for one request; the others wait for room on the client's side. Leaving the wait
        early submits nothing.

        Args:
            prompt: one prompt or a list, as in `generate`.
            n: the number of samples per prompt, as in `generate`.
            Others: as in `generate`.

        Returns:
            The handles of all samples of the first prompt, then of the next prompt, and so on.

        Raises:
            QueueFull: `max_waiting` requests of this priority, or more urgent, are waiting already.
            InvalidRequest: as in `generate`.
            SessionError: the session is closed or its engine failed.
            Others: as in `generate`, raised by the handles.
        """
        return self._requests.submit_all(prompt, options, n)

    submit_all_sync = blocking(submit_all)

    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def submit_all_unless(
        self,
        reason: Callable[[], Exception | None],
        prompt: OnePrompt | Prompts = None,
        *,
        n: int | None = None,
        **options: Unpack[GenerateOptions[Any]],
    ) -> list[Handle]:
        """Run `submit_all`, and block until it has ended, or until there is a reason to leave it.

        Args:
            reason: returns the error to raise, or None. It is called a few times per second, in this thread.
            prompt: one prompt or a list, as in `submit_all`.
            n: the number of samples per prompt, as in `submit_all`.
            **options: as in `submit_all`.

        Raises:
            Exception: the reason; nothing was submitted.
            Others: as in `submit_all`.
        """
        return blocked(unless(self._requests.submit_all(prompt, options, n), reason))

    def check_room(self, priority: int = 0) -> None:
        """Raise QueueFull if `submit` would raise it now. Useful before calls that would wait, such as `embed`."""
        self._engine.client.check_room(priority)

    @awaitable("await session.enqueue(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def enqueue(self, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Waits[Handle]:
        """Wait for room in the waiting queue, submit a request, and return its handle.

        Waiting calls are served in order. Leaving the wait early submits nothing.

        Args:
            prompt: text or messages, as in `generate`.
            Others: as in `generate`.

        Raises:
            InvalidRequest: an option or the form of the prompt is invalid.
            SessionError: the session is closed or its engine failed.
            Others: as in `generate`, raised by the handle.
        """
        return self._requests.submit_one(prompt, options, wait=True).wait_entered()

    enqueue_sync = blocking(enqueue)

    if TYPE_CHECKING:
        map = maps.map
        map_sync = blocking(map)  # noqa: A003
        bench = awaitable("await session.bench()")(benching.bench)
        bench_sync = blocking(bench)
        compare = awaitable("await session.compare(...)")(comparing.compare)
        compare_sync = blocking(compare)
        explain = awaitable("await session.explain(...)")(explaining.explain)
        explain_sync = blocking(explain)
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
        classify = awaitable("await session.classify(...)")(classifying.classify)
        classify_sync = blocking(classify)
        spans = awaitable("await session.spans(...)")(tagging.spans)
        spans_sync = blocking(spans)
        fill = awaitable("await session.fill(...)")(filling.fill)
        fill_sync = blocking(fill)
        rerank = awaitable("await session.rerank(...)")(ranking.rerank)
        rerank_sync = blocking(rerank)
        decide = awaitable("await session.decide(...)")(deciding.decide)
        decide_sync = blocking(decide)
    else:  # their rooms are imported at the first use
        map, map_sync = later("rekindle.mapping.pending.map")
        bench, bench_sync = later("rekindle.session.bench.bench", "await session.bench()")
        compare, compare_sync = later("rekindle.session.comparing.compare", "await session.compare(...)")
        explain, explain_sync = later("rekindle.session.operations.explaining.explain", "await session.explain(...)")
        run_tools, run_tools_sync = later("rekindle.chats.conversations.run_tools", "await session.run_tools(...)")
        chat, _ = later("rekindle.chats.conversations.chat")
        prefix, prefix_sync = later("rekindle.session.prefix.prefix")
        embed, embed_sync = later("rekindle.scoring.embedding.embed", "await session.embed(...)")
        score, score_sync = later("rekindle.scoring.likelihood.score", "await session.score(...)")
        perplexity, perplexity_sync = later("rekindle.scoring.likelihood.perplexity", "await session.perplexity(...)")
        classify, classify_sync = later("rekindle.scoring.classifying.classify", "await session.classify(...)")
        spans, spans_sync = later("rekindle.scoring.tagging.spans", "await session.spans(...)")
        fill, fill_sync = later("rekindle.scoring.filling.fill", "await session.fill(...)")
        rerank, rerank_sync = later("rekindle.scoring.ranking.rerank", "await session.rerank(...)")
        decide, decide_sync = later("rekindle.scoring.deciding.decide", "await session.decide(...)")

    @awaitable("await session.update_weights(...)")
    def update_weights(
        self, weights: Weights, *, in_flight: InFlightPolicy = "finish", share: bool = False
    ) -> Waits[None]:
        """Replace the model's weights with others of the same structure, and wait until the new ones are in use.

        A vision tower among them replaces the model's. Nothing is compiled. Cached prefixes are dropped: `Prefix`
        objects stay usable, but no longer hold pages. Leaving the wait early keeps the old weights, unless the new ones
        are in use already.

        Args:
            weights: a model as in `open`, or arrays by their names in Hugging Face checkpoints, with or without the
                vision tower. With several hosts, a model that every process can open.
            in_flight: "finish" completes running requests with the old weights while new requests wait. "keep"
                continues them with the new weights: their prompts and tokens so far are computed again, and the tokens
                stay. "fail" ends running requests with WeightsChanged.
            share: whether arrays of JAX already in the engine's form, on its device, are used without a copy. Do not
                donate them to a function while they are in use; they may be deleted. Others are copied on their device:
                arrays of another dtype, projections computed together, packed matrices of CPUs, and all on TPUs.

        Raises:
            ModelError: the weights cannot be read, or have another structure; the old weights stay in use.
            HostRefused: another process cannot read the weights or has different ones; the old weights stay in use.
            InvalidRequest: `weights` or `in_flight` is invalid, or `in_flight` is "keep" and `deterministic=True` rules
                out other programs for a request on these devices.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.update_weights(weights, in_flight, share)

    update_weights_sync = blocking(update_weights)

    @awaitable("await session.sleep()")
    def sleep(self, *, in_flight: InFlightPolicy = "finish") -> Waits[None]:
        """Free the weights and all pages on the device for other users of it, and wait until this is done.

        Programs, tokenizer and settings stay, so that `wake` compiles nothing. Requests can still be submitted; they
        wait until the session wakes. Cached pages on the device are lost. Copies in host memory and on disk stay, and
        are found after `wake()` with the same weights. Leaving the wait early keeps the session awake, unless it is
        asleep already.

        Args:
            in_flight: "finish" completes running requests first, while new ones wait; "keep" continues them when the
                session wakes, computed again from their tokens; "fail" ends them with WeightsChanged.

        Raises:
            InvalidRequest: `in_flight` is invalid, or as in `update_weights`; or devices of the session belong to other
                processes.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.sleep(in_flight)

    sleep_sync = blocking(sleep)

    @awaitable("await session.wake()")
    def wake(self, weights: Weights | None = None) -> Waits[None]:
        """Read the weights again after `sleep`, allocate all pages, and wait until requests are served again.

        Nothing is compiled. An awake session stays as it is, unless it gets other weights. `update_weights` wakes a
        session too.

        Args:
            weights: new weights, as in `update_weights`. The default reads those in use before from their files.

        Raises:
            InvalidRequest: the weights in use before were given as arrays; pass them.
            ModelTooLarge: the device has no room for weights and pages at the moment; the session stays asleep.
            CheckpointError: the files have changed since they were read; pass them, to use them as new weights. The
                session stays asleep.
            ModelError: the weights cannot be read; the session stays asleep.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.wake(weights)

    wake_sync = blocking(wake)

    @awaitable("await session.add_adapter(...)")
    def add_adapter(
        self,
        name: str,
        path: AdapterSource | None = None,
        *,
        tensors: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Waits[None]:
        """Add a LoRA adapter under a name for requests, and wait until it is on the device.

        Requests use it with `generate(..., adapter=name)`. Requests with different adapters, and without one, share the
        batches. An adapter of the same name is replaced: requests submitted from now on use the new one, and earlier
        ones finish with the old one. Cached prefixes belong to an adapter's numbers, so no request finds those of
        another one, and an adapter added again finds its own.

        The first adapter takes the memory of `max_adapters` adapters of rank `max_adapter_rank`, and its requests wait
        for programs of their own. Later ones compile nothing. `sleep` keeps adapters, and so does `update_weights`.

        Args:
            name: the name.
            path: the directory of an adapter saved by PEFT, with adapter_config.json and adapter_model.safetensors.
            tensors: the adapter's arrays of numpy or JAX in place of files, by their names there, such as
                "model.layers.0.self_attn.q_proj.lora_A.weight".
            config: the content of adapter_config.json for `tensors`, at least `r` and `lora_alpha`.

        Raises:
            InvalidRequest: the arguments are invalid, there are `max_adapters` already, or the session cannot have
                adapters.
            ModelError: the adapter cannot be read, is more than LoRA of linear layers, or does not fit the model.
            SessionError: the session is closed or its engine failed.
        """
        return self._adapters.add(name, path, tensors, config)

    add_adapter_sync = blocking(add_adapter)

    @awaitable("await session.remove_adapter(...)")
    def remove_adapter(self, name: str) -> Waits[None]:
        """Remove an adapter: requests that name it are refused from now on, and earlier ones finish with it.

        Its place on the device is free for another adapter once the last of them has ended. The call does not wait for
        that.

        Raises:
            InvalidRequest: there is no adapter of this name.
        """
        self._adapters.remove(name)
        yield from ()

    remove_adapter_sync = blocking(remove_adapter)

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """The adapters by name, each with its source, rank, digest and number of unfinished requests."""
        return self._engine.client.adapters.infos

    @cached_property
    def _inspections(self) -> "Inspections":
        from rekindle.session.operations.inspecting import Inspections

        return Inspections(self._engine, self._requests)

    @awaitable("await session.look(...)")
    def look(
        self,
        prompt: OnePrompt = None,
        *,
        layers: int | Sequence[int] | None = None,
        parts: Part | Sequence[Part] = "residual",
        heads: Sequence[tuple[int, int]] = (),
        steer: Steering | Sequence[Steering] = (),
        patch: Patch | Sequence[Patch] = (),
        token_ids: TokenIds | None = None,
        images: Sequence[Any] | None = None,
    ) -> Waits["Activations"]:
        """Compute a prompt, and return activations of the model for each of its tokens.

        The prompt is computed anew and alone, between two ticks of the engine: cached prefixes are neither read nor
        written. The first look of a size compiles a program, which is stored for later sessions; rooms for tokens are
        64, 256, 1,024 and so on.

        Args:
            prompt: one prompt, as in `generate`.
            layers: the layers, from the end if negative. The default is all.
            parts: "residual" (default) is what a layer passes on; "attention" and "mlp" are what these add to it.
            heads: (layer, head) pairs of attention patterns.
            steer, patch: changes of activations during the look, as in `SamplingParams`.
            token_ids: token ids in place of a prompt.
            images: the images of the prompt, as in `generate`. `Activations.over_images` draws attention over them.

        Raises:
            InvalidRequest: an argument is not in the model, an image is bad, the activations take more than 4 GiB, the
                model has several residual streams, or its devices belong to other processes.
            PromptTooLong: the prompt does not fit.
            ModelTooLarge: the device has no room for the activations.
            SessionError: the session is closed or its engine failed.
        """
        changes = steerings("steer", steer), patches("patch", patch)
        options: PromptOptions[Any] = {} if images is None else {"images": images}
        options |= {} if token_ids is None else {"token_ids": token_ids}
        return self._inspections.look(prompt, options, layers, parts, heads, *changes)

    look_sync = blocking(look)

    @awaitable("await session.logit_lens(...)")
    def logit_lens(self, activations: "Activations", *, top: int = 5) -> Waits["LogitLens"]:
        """Compute the logit lens of a look: predictions by the last norm and the head over the residual of each layer.

        The method is from nostalgebraist, "interpreting GPT: the logit lens" (2020).

        Args:
            activations: a result of `look` with the part "residual".
            top: the number of likeliest tokens, 1 to 10.

        Raises:
            InvalidRequest: `top` is out of range, or the look has no part "residual".
            SessionError: the session is closed or its engine failed.
        """
        return self._inspections.logit_lens(activations, top)

    logit_lens_sync = blocking(logit_lens)

    @awaitable("await session.save()")
    def save(self, *, progress: bool = True) -> Waits[int]:
        """Write all cached prefixes to disk for later sessions, and wait until they are on disk.

        An idle engine writes them without this call. Leaving the wait early does not stop the writing.

        Args:
            progress: whether to draw a progress bar while waiting.

        Returns:
            The number of pages written, not counting pages already on disk. If `disk_cache_bytes` is too small for all
            pages, the latest stay, with a RuntimeWarning; `stats.scheduler.disk_pages` counts the pages on disk.

        Raises:
            StorageError: some pages could not be written, or the session's settings disable writing.
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.save(progress)

    save_sync = blocking(save)

    @awaitable("await session.save_quantized(path)")
    def save_quantized(
        self,
        path: str | os.PathLike[str],
        *,
        format: "SavedFormat | None" = None,  # noqa: A002
        overwrite: bool = False,
        progress: bool = True,
    ) -> Waits["SavedModel"]:
        """Write the model with the codes of `quantize=` as a file of other programs, and wait until it is complete.

        A GGUF file is for llama.cpp, and opens as a session with equal logits. A directory of safetensors in the format
        of compressed-tensors is for vLLM and transformers; its embedding and head keep their numbers.

        The weights are read from the model's files again, a piece at a time, while requests run. The new model appears
        complete or not at all: leaving the wait early ends the writing, and nothing is left of it.

        Args:
            path: the new file, with a name that ends in .gguf, or the new directory.
            format: "gguf" or "safetensors". The default is the one of the path's name.
            overwrite: whether to replace a model at the path.
            progress: whether to draw a progress bar while waiting.

        Returns:
            A `SavedModel`: the path and the format, and the bytes of the weights before and after.

        Raises:
            InvalidRequest: the session was opened without `quantize=`, its weights were replaced, or it has adapters.
            ConfigError: the format does not fit the path.
            UnsupportedModel: the format has no form for the model, such as experts in a new GGUF file.
            CheckpointError: the files of the model have changed since they were opened.
            StorageError: the path exists, cannot be written, or the disk is full.
        """
        from rekindle.session.operations.saving import save_quantized

        return save_quantized(self._engine, path, format, overwrite, progress)

    save_quantized_sync = blocking(save_quantized)

    @awaitable("await session.precompiled()")
    def precompiled(self, *, progress: bool = True) -> Waits[None]:
        """Wait until every program of the setting `precompile` is compiled and stored for later sessions.

        Leaving the wait early does not stop the compilation.

        Args:
            progress: whether to draw a progress bar while waiting.

        Raises:
            SessionClosed: the session was closed meanwhile.
            Others: the error of the first program that could not be compiled.
        """
        return self._operations.precompiled(progress)

    precompiled_sync = blocking(precompiled)

    @awaitable("await session.pause()")
    def pause(self) -> Waits[None]:
        """Pause the engine: its actors handle no further messages. Wait until no actor is busy.

        Requests can still be submitted. They wait until the engine resumes, as do `save`, `update_weights` and
        `prefix`. After leaving the wait early, the engine is paused all the same.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.pause()

    pause_sync = blocking(pause)

    def resume(self) -> None:
        """Resume a paused engine. Returns at once; thread-safe.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        self._engine.thread.command(Resume())

    @awaitable("await session.step()")
    def step(self) -> Waits[MessageRecord | None]:
        """Step the engine: let one actor handle the oldest pending message, and wait until it has.

        A running engine is paused first. After leaving the wait early, the engine stays paused, and a message not yet
        taken stays pending.

        Returns:
            The record of the message with the actor's answers; None if no message is pending.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._operations.step()

    step_sync = blocking(step)

    @property
    def stuck(self) -> str | None:
        """Description of a tick that has exceeded `watchdog_timeout`, with its duration; None without one."""
        return self._engine.thread.stuck

    @property
    def paused(self) -> bool:
        """True if the engine is paused."""
        return self._engine.thread.paused

    @property
    def pending(self) -> Pending:
        """Pending messages, by the name of the receiving actor.

        Raises:
            SessionError: the session is closed or its engine failed.
        """
        return self._engine.thread.pending

    def watch(self, see: Observer) -> "Watching":
        """Call a function with the record of each message handled by an actor: `with session.watch(see): ...`.

        The function runs on the engine's thread between two messages, so it must be quick. After an error, the function
        is not called again, and the `with` statement raises the error at its end.

        Args:
            see: the function, called with one `rekindle.MessageRecord`.

        Raises:
            ConfigError: `see` is not a function.
            SessionError: the session is closed or its engine failed (raised by the `with`).
        """
        from rekindle.views.watching import Watching

        return Watching(self._engine.thread, see)

    def trace(self, *, most: int = 100_000) -> "Trace":
        """Record the engine's messages: `with session.trace() as t: ...`, then `t.timeline()` or `t.to_perfetto(path)`.

        Args:
            most: the maximum number of recorded messages; older messages are dropped.

        Raises:
            SessionError: the session is closed or its engine failed (raised by the `with`).
        """
        from rekindle.views.trace import Trace

        return Trace(self._engine.thread, most)

    def dashboard(self) -> "Dashboard":
        """Show a live dashboard of speed, slots, pages and requests. Call it on the last line of a cell.

        The dashboard updates while cells run and while the kernel is idle. It has buttons that pause the engine and
        cancel requests. It stops when its output is cleared, when the session ends, or on `stop()`. A session has one
        dashboard: another call stops the previous one.
        """
        from rekindle.notebook.board.dashboard import Dashboard

        if self._dashboard is not None:
            self._dashboard.stop()
        self._dashboard = Dashboard(self.view)
        return self._dashboard

    @property
    def view(self) -> "EngineView":
        """The source of a dashboard: the current facts about the engine."""
        from rekindle.session.engine_view import EngineView

        return EngineView(self._engine, self._name)

    def explore(self, generation: Generation) -> "Explorer":
        """Show a generation with a button for each token. Call it on the last line of a cell.

        Pressing a token shows its alternatives from `logprobs`. Pressing an alternative branches there, as
        `generation.branch` does; the branch is shown below and can be explored in turn.

        Raises:
            InvalidRequest: the generation has no `logprobs`.
        """
        from rekindle.notebook.explorer import Explorer

        return Explorer(generation)

    @property
    def requests(self) -> dict[int, Handle]:
        """Handles of all unfinished requests, by request id as in the engine's messages."""
        return self._engine.client.under_way

    @property
    def restored(self) -> RestoreReport:
        """Programs and prefixes restored from earlier sessions so far; programs load in the background."""
        return RestoreReport.of(self._engine.facts.programs.restored())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without the special tokens added around prompts.

        Raises:
            InvalidRequest: the model has no tokenizer, or `text` is not a str.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"encode() takes a text, got {preview(text)}; render() turns messages into text")
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
        """Return a conversation rendered by the model's chat template: the text that `generate` tokenizes.

        Args:
            messages, tools, chat_template_kwargs, continue_final_message: as in `generate`.

        Raises:
            InvalidRequest: the model has no chat template, or as in `generate`.
        """
        options: PromptOptions[TokenIds] = {
            "tools": tools,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        }
        return self._requests.render(self._requests.conversation(messages, options))

    @spelled_out(PromptOptions, PROMPT_DEFAULTS)
    def count_tokens(self, prompt: OnePrompt = None, **options: Unpack[PromptOptions[TokenIds]]) -> int:
        """Return the number of tokens of a prompt, including special tokens. The prompt may be longer than the context.

        Args:
            prompt: text or messages, as in `generate`.
            **options: `token_ids`, `tools` and the other prompt options of `generate`.

        Raises:
            InvalidRequest: as in `generate`.
        """
        check_keywords(options, PromptOptions.__annotations__)
        return self._engine.facts.preparer.prompts.count(self._requests.prompt(prompt, options))

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer; pass token_ids instead of text, and use the token ids")
        return self.tokenizer

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer with the chat template; None for a model without one."""
        return self._engine.facts.tokenizer

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes of the model's classification head; None without a head."""
        head = self._engine.facts.checkpoint.uses.classifier
        return None if head is None else head.labels

    @property
    def takes_images(self) -> bool:
        """True if prompts may have images."""
        return self._engine.facts.preparer.prompts.images is not None

    @property
    def text_prefix(self) -> str:
        """The text that `embed` puts before each text by default, from the model's files; empty for none."""
        from rekindle.scoring import embedding

        return embedding.prompt_prefix(self._engine.facts.checkpoint.uses.embedding, None)

    @property
    def embedding_prompts(self) -> dict[str, str]:
        """The texts that `embed(instruction=NAME)` puts before others, by name, from the model's files."""
        return dict(self._engine.facts.checkpoint.uses.embedding.prompts)

    def embedding_chat(
        self, prompt: str | Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]] | None:
        """Return the messages that `embed` makes of a text or messages by default, and the template's variables.

        None for a model whose files have no form of messages: its texts have `text_prefix`.
        """
        from rekindle.scoring import embedding

        return embedding.chat_by_default(self._engine.facts.checkpoint.uses.embedding, prompt)

    @property
    def name(self) -> str:
        """Name of the model, as passed to `open`."""
        return self._name

    @property
    def error(self) -> Exception | None:
        """Reason for the session's end, a `rekindle.SessionError`; None while the session is open."""
        return self._engine.thread.error

    @property
    def cache(self) -> "CacheView":
        """Current content of the prefix cache. Pages of ended requests and released prefixes are not held."""
        from rekindle.views.cache.view import merge_lanes, view

        self._engine.thread.await_releases()
        tokenizer, pool = self._engine.facts.tokenizer, self._engine.facts.limits.pool
        images = self._engine.facts.preparer.prompts.images
        text_of = images.readable if images else tokenizer.decode if tokenizer else lambda tokens: ""
        lanes = [
            scheduler.look(lambda trees: view(trees, pool.page_bytes, pool.state_bytes, text_of))
            for scheduler in self._engine.facts.schedulers
        ]
        return merge_lanes(lanes).with_texts(text_of)

    @property
    def sampling_defaults(self) -> SamplingParams:
        """Default sampling parameters: Rekindle's defaults, overridden by the model's recommendations."""
        return SamplingParams.from_options({}, self._engine.facts.defaults)

    @property
    def device(self) -> jax.Device:
        """First of the session's devices.

        Raises:
            InvalidRequest: the devices belong to replicas in other processes.
        """
        place = self._engine.facts.lanes[0].place
        if place is None:
            raise InvalidRequest(
                f"the devices of this session, {self._engine.facts.deployment}, are in other processes"
            )
        return place.first

    @property
    def settings(self) -> Settings:
        """All settings in effect: the arguments of `open`, and the values chosen for the others."""
        return Settings.of(self._engine.facts.settings)

    @property
    def model(self) -> "ModelFacts":
        """Facts about the model: its family, number of parameters, and files as they were opened.

        They are those of `open`, after `update_weights` too.
        """
        self._model_facts = self._model_facts or facts_of(self._engine.facts)
        return self._model_facts

    @property
    def memory(self) -> Memory:
        """Current memory use of weights, workspace and pages."""
        return Memory.of(self._engine.facts, asleep=self.asleep, adapters=self._adapters.bytes)

    @property
    def asleep(self) -> bool:
        """True between `sleep` and `wake`, while the device has neither weights nor pages of the session."""
        return self._engine.client.weights.asleep

    @property
    def weights_version(self) -> int:
        """Number of the weights in use: 0 for those of `open`, and one more after each `update_weights`.

        Sessions on the same kept replicas share weights: an `update_weights` of one raises the number in all.
        """
        return self._engine.client.weights.version

    @property
    def fingerprint(self) -> str:
        """Short digest of everything in the session that decides the bits of answers to a given request.

        It covers the content of the weights, the tokenizer, the chat template, the logits processor and the adapters;
        the structure of the model; the data types and forms of numbers; the defaults of sampling parameters; kernels,
        platform, shapes of programs and code. After `update_weights` it ends in the number of the weights. It is the
        `system_fingerprint` in answers of a server. The first access takes a moment.
        """
        self._fingerprint_base = self._fingerprint_base or base_of(self._engine.facts)
        version = self.weights_version
        client = self._engine.client
        digest = fingerprint_of(self._fingerprint_base, client.weights.digest, client.adapters.infos)
        return f"fp_{digest}_{version}" if version else f"fp_{digest}"

    @property
    def stats(self) -> Stats:
        """Current counters of the engine."""
        return Stats.of(self._engine.facts.stats())

    @spelled_out(ServerOptions, SERVER_DEFAULTS)
    def serve(self, *, name: str | Sequence[str] | None = None, **settings: Unpack[ServerOptions]) -> "PendingServer":
        """Serve OpenAI's HTTP API from this process: `server = await session.serve(port=0)`, or `async with` it.

        The address of the server is `server.url`. The server stops on `await server.close()` or when the session ends.
        Its requests share batches, programs and the prefix cache with all other requests of the session. For another
        ASGI server, use `rekindle.server.app(session)`.

        Args:
            name: the model name for clients, or several names (answers have the first); the default is the name passed
                to `open`, or the last part of a path.
            **settings: the address, keys, certificate and so on: see `rekindle.ServerSettings`.

        Returns:
            A `PendingServer`: its await, or `async with`, starts the server and returns it.

        Raises:
            ConfigError: the extra `rekindle-llm[server]` is not installed, an argument is invalid, or (raised by the
                await) the server cannot listen on the address.
            SessionError: the session is closed.
        """
        self._requests.engine.check()
        checked = ServerSettings.of(settings)
        try:
            from rekindle.server.listening.running import PendingServer
            from rekindle.server.models.served import OneModel
        except ImportError as error:
            raise not_installed("the server", "server", error) from error
        return PendingServer(OneModel(self, name), checked, self._operations.followed_by)

    serve_sync = blocking(serve)

    def metrics_text(self) -> str:
        """Return the session's counters and latency histograms in Prometheus text format.

        Counters have the names of `stats` with the prefix "rekindle_". Histograms cover the seconds until a request
        leaves the queue, until its first token, between its tokens, and until its end.
        """
        from rekindle.session.metrics import SessionMetrics

        return SessionMetrics(self.stats, self._engine.client.latencies).text()

    @awaitable("await session.close()")
    def close(self) -> Waits[None]:
        """Stop the engine and free its device memory, and wait until both are done. Idempotent.

        Requests in flight fail with SessionClosed. Cached pages not yet on disk are written first, for at most
        3 seconds, unless the engine is paused. Servers of the session are closed too, within their `grace`. If the
        device hangs, a RuntimeWarning describes its tick after 3 to 10 seconds, and the engine is left behind: it frees
        the memory if the device ever returns.
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

    def _rest(self) -> str | None:
        """Return the reason for an engine at rest, in a word; None if it serves."""
        if self.paused:
            return "paused"
        return ASLEEP if self.asleep else None if self._engine.client.weights.present else "without weights"

    def _about(self) -> SessionCard:
        state, adapters = self.stuck or self._rest(), self._adapters.bytes
        return SessionCard(self._name, self._engine.facts, self._engine.thread.error, state, adapters)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        about = self._about()
        return markup.bundle(about.text(), about.html())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the full text for the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else self._about().text())

    def __dir__(self) -> list[str]:
        """Return the names for completion, without those for servers and the parts of the package."""
        return sorted({*super().__dir__()} - _UNLISTED)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a session cannot be pickled or copied, because it has a device and threads: open one in each process, or "
            "serve one and send it requests over HTTP. Generations can be pickled"
        )

    def __repr__(self) -> str:
        return self._about().line()


def _stats_of(scheduler: LaneState) -> SchedulerStats:
    return scheduler.stats
