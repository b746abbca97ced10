"""Requests of a session or a prefix: their checks, their submission to the engine, and the waits for them."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any, Protocol, cast
from weakref import ref

from rekindle.client.batches.batch import Batch, check_errors, check_progress
from rekindle.client.batches.drawing import Drawer, Report, until_over
from rekindle.client.batches.loop import AsCompleted, BatchStreams
from rekindle.client.batches.run import Errors, Shape
from rekindle.client.branches import Branches
from rekindle.client.calls.checks import TEMPLATE_NOTE, check_captures, check_params, lacks_template
from rekindle.client.calls.images import has_images
from rekindle.client.calls.notes import Notes
from rekindle.client.calls.options import GenerateOptions, PromptOptions, ToolSchemas
from rekindle.client.calls.prompts import (
    all_prompts,
    continuation,
    each_of,
    is_chat,
    label_of,
    names_of,
    one_chat,
    one_prompt,
    prefix_prompt,
    text_of,
    tools_in,
    unanswered,
)
from rekindle.client.calls.tool_grammar import with_tool_grammar
from rekindle.client.engine_client import OpenEngine
from rekindle.client.handle import Handle, Stream
from rekindle.client.submission import AnswerCaptures, Submission, reader_of
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Waits, until_closed
from rekindle.core.errors import InvalidRequest, SessionClosed
from rekindle.core.messages import NO_PREFIX, Conversation, OutputPrefix, PicturedTokens, Prompt, goes_on
from rekindle.core.request.accepted import LONGEST_NAME, check_draws
from rekindle.core.request.checks import boolean, text
from rekindle.core.request.params import SamplingOptions, SamplingParams, draws
from rekindle.core.request.repetition import TEXTS, RepetitionLimit
from rekindle.core.request.request import AssistantTurn, States, check_length
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.facts import settings
from rekindle.results.generation import Generation


class HasRequests(Protocol):
    """Interface of a session for its methods defined in other packages."""

    _requests: "Requests"


@dataclass(frozen=True, slots=True)
class _Call:
    """Call for generations, with checked options and prompts.

    Attributes:
        options: the options of the call.
        params: the sampling parameters of the call.
        prompts: the prompts; errors replace bad prompts.
        inputs: the caller's value for each prompt.
        shape: the shape of the result.
    """

    options: GenerateOptions[Any]
    params: SamplingParams
    prompts: Sequence[Prompt | InvalidRequest]
    inputs: Sequence[Any]
    shape: Shape


class Requests:
    """Factory of the requests of a session, or of a prefix of it.

    Args:
        options: the session's default sampling options.
        draw: returns the drawer of requests for a function that reports awaited compilations.
        progress: whether calls draw their progress by default.
        repetition: the limit of repetition in free texts; None without a limit.
        name: the name of the model, as passed to `open`; "" if it has none.

    Attributes:
        engine: the engine of the session.
        name: as above.
    """

    def __init__(
        self,
        engine: OpenEngine,
        options: Mapping[str, Any],
        draw: Callable[[Report], Drawer],
        progress: bool,
        repetition: RepetitionLimit | None = None,
        name: str = "",
    ):
        self.engine, self.name = engine, name
        self._options, self._draw, self._progress, self._repetition = options, draw, progress, repetition
        self._drawer = draw(engine.facts.programs.awaited)
        self._notes = Notes(self._drawer.note if progress else None, engine.facts.tokenizer)
        self._prefix: Prompt | None = None

    @property
    def is_open(self) -> bool:
        """True if the session is neither closed nor failed."""
        return self.engine.thread.error is None

    def continuing(self, prefix: Prompt, cache_salt: str, adapter: str | None) -> "Requests":
        """Return the factory of requests that continue a prefix, with the prefix's cache salt and adapter."""
        requests = copy(self)
        requests._options = {**self._options, "cache_salt": cache_salt, "adapter": self.adapter(adapter)}
        requests._prefix, requests._repetition = prefix, None
        return requests

    def conversing(self) -> "Requests":
        """Return the factory of requests for conversations, whose answers end by themselves, or in a loop."""
        requests = copy(self)
        requests._options = {"max_tokens": None, **self._options}
        requests._repetition = TEXTS
        return requests

    def chatting(self) -> "Requests":
        """Return the factory of requests for chats: conversations, with the options recommended for them."""
        requests = self.conversing()
        requests._options = {**requests._options, **self.engine.facts.chat_defaults}
        return requests

    def _of(self, prompt: Any, options: GenerateOptions[Any]) -> "Requests":
        """Return the factory for the prompts of a call: `conversing` for conversations without a limit or captures."""
        is_open = "max_tokens" not in options and options.get("capture") is None
        return self.conversing() if is_open and is_chat(prompt) else self

    def salt(self, options: Mapping[str, Any]) -> str:
        """Return the `cache_salt` of a request with these options; "" without one."""
        return str(options.get("cache_salt") or self._options.get("cache_salt") or "")

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the model, if it has one."""
        return self.engine.facts.tokenizer

    def adapter(self, name: Any) -> str | None:
        """Return the name of an adapter of the session, or None; raises InvalidRequest for another one."""
        if name is not None:
            self.engine.client.adapters.check(text("adapter", name, LONGEST_NAME))
        checked: str | None = name
        return checked

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: the exclusive upper bound of token ids."""
        return self.engine.facts.model.vocab_size

    def draws_progress(self, progress: bool | None) -> bool:
        """Return True if a call draws its progress; None selects the session's default.

        Raises:
            InvalidRequest: `progress` is neither None nor a bool.
        """
        return self._progress if progress is None else boolean("progress", progress)

    def wait_for_look(self, answers: Feed[Any]) -> Waits[None]:
        """Wait until the feed of a program's outputs is closed, and draw a long wait if the session draws progress."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        yield from self._drawer.look(answers) if self._progress else until_closed(answers)

    def begin(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: GenerateOptions[Any],
        output_prefix: OutputPrefix,
        tools: ToolSchemas | None,
        label: str | None,
    ) -> Handle:
        """Submit a request whose output begins with given tokens, for a branch.

        Args:
            tools: the tools of the conversation; None if the prompt is not a conversation.
            label: the prompt for displays; see `Submission`.
        """
        submission = self._submission(prompt, params, options, tools)
        return self._submit(replace(submission, output_prefix=output_prefix, label=label))

    def compute(self, prompt: Prompt, params: SamplingParams, pooling: States | None = None) -> Handle:
        """Submit a request for prompt logprobs or hidden states; its output is not parsed."""
        return self._submit(replace(self._submission(prompt, params, {}, None, meanwhile=""), pooling=pooling))

    def measure(self, prompt: tuple[int, ...], tokens: int) -> Handle:
        """Submit a load to measure: an answer of `tokens` tokens that leaves nothing in caches and statistics."""
        params = self.params({"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "cache_salt": token_hex()})
        return self._submit(replace(self._submission(prompt, params, {}, None), synthetic=True))

    def hold(self, prefix: Prompt) -> Handle:
        """Submit a request that computes a prefix and holds it in the prefix cache until it is withdrawn."""
        return self._submit(replace(self._submission(unanswered(prefix), self.params({}), {}, None), hold=True))

    def prompt(self, prompt: Any, options: PromptOptions[Any]) -> Prompt:
        """Return the prompt of a call for a single prompt; raises as `all_prompts` and `one_prompt` do."""
        return one_prompt(*self.prompts(prompt, options))

    def submit_one(self, prompt: Any, options: GenerateOptions[Any], *, wait: bool) -> Handle:
        """Submit the request of a call for a single prompt.

        Args:
            wait: whether to queue the request on the client's side while the waiting queue is full.

        Raises:
            QueueFull: the waiting queue is full, and `wait` is False.
        """
        own = self._of(prompt, options)
        params = own.params(options)  # reports a misspelt option before a missing prompt
        return own.submit(own.prompt(prompt, options), params, options, wait=wait)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: GenerateOptions[Any],
        *,
        wait: bool = True,
        progress: bool | None = None,
    ) -> Handle:
        """Submit a request with a checked prompt and the parameters of its call."""
        call_options = self._with_tool_grammar(options, [prompt])
        params = params if call_options is options else self.params(call_options)
        return self._submit(self._submission(prompt, params, call_options, tools_in(prompt), progress), wait=wait)

    def answer(
        self,
        chat: Conversation,
        options: GenerateOptions[Any],
        prompt: Prompt | None,
        output_prefix: OutputPrefix = NO_PREFIX,
    ) -> Handle:
        """Submit a request for the answer to a conversation.

        Args:
            prompt: the prompt of the conversation with the tokens of earlier turns; None without them.
            output_prefix: the first tokens of the answer.
        """
        call_options = self._with_tool_grammar(options, [chat])
        submission = self._submission(prompt or chat, self.params(call_options), call_options, chat.tools or ())
        return self._submit(replace(submission, label=text_of(chat), output_prefix=output_prefix))

    def conversation(self, messages: Any, options: PromptOptions[Any]) -> Conversation:
        """Return the conversation of a call for a single conversation; raises as `one_chat` does."""
        chat = one_chat(messages, options)
        self._notes.warn_unread(options.get("chat_template_kwargs") or {})
        return chat

    def render(self, chat: Conversation) -> str:
        """Return a conversation rendered by the chat template; raises InvalidRequest if the template fails."""
        return self.engine.facts.preparer.prompts.rendered(chat)

    def call(
        self,
        prompt: Any,
        options: GenerateOptions[Any],
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
    ) -> Handle | Batch:
        """Check a call for generations; return the submitted request of a single prompt, or a batch to start."""
        own = self._of(prompt, options)
        call = own._call(prompt, options, n)
        check_errors(errors, call.shape)
        check_progress(progress, call.shape)
        self.note_plain_texts(call.prompts, call.params)
        if call.shape.is_list:
            return own._batch(call, errors, progress)
        return own.submit(one_prompt(call.prompts, call.shape.several), call.params, options, progress=progress)

    def note_plain_texts(self, prompts: Sequence[Prompt | InvalidRequest], params: SamplingParams) -> None:
        """Display the note about a text without the chat template, once."""
        if self._prefix is None and lacks_template(prompts, params, self.tokenizer):
            self._notes.note_once("template", TEMPLATE_NOTE)

    def all(
        self, prompt: Any, options: GenerateOptions[Any], n: int | None, errors: Errors, progress: bool | None
    ) -> Waits[Any]:
        """Check a call for generations now; return the operation that waits for room in the queue and the answers."""
        work = self.call(prompt, options, n=n, errors=errors, progress=progress)
        if isinstance(work, Handle):
            return self._noting_cuts(work.wait_ended(), options)
        watch = self._drawer.batch(work.variants[0].max_tokens) if self.draws_progress(progress) else until_over
        return work.wait_ended(watch)

    def _noting_cuts(self, answer: Waits[Generation], options: GenerateOptions[Any]) -> Waits[Generation]:
        """Return the wait for an answer, followed by a note, once, if the default of `max_tokens` cut it."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        generation = yield from answer
        if "max_tokens" not in options and generation.cut_by and generation.full_context is None:
            self._notes.note_once("cut", f"The answer was cut {generation.cut_by}. This note appears once per session.")
        return generation

    def stream(self, prompt: Any, options: GenerateOptions[Any]) -> Stream | BatchStreams:
        """Return the stream of one request, submitted now, or of a batch, submitted when the loop begins."""
        work = self.call(prompt, options)
        return Stream(work) if isinstance(work, Handle) else BatchStreams(work)

    def submit_all(self, prompt: Any, options: GenerateOptions[Any], n: int | None) -> Waits[list[Handle]]:
        """Check a call for generations now; return the operation that submits them. See `Session.submit_all`."""
        own = self._of(prompt, options)
        call = own._call(prompt, options, n)
        batch = own._batch(call, "raise", progress=False)
        self.engine.client.check_room(call.params.priority)
        return batch.submit_all()

    def as_completed(self, prompt: Any, options: GenerateOptions[Any], errors: Errors) -> AsCompleted[Any]:
        """Return the loop over the outcomes of a batch in order of completion."""
        own = self._of(prompt, options)
        call = own._call(prompt, options)
        check_errors(errors, call.shape)
        if not call.shape.is_list:
            raise InvalidRequest("as_completed() takes a list of prompts, but got one prompt; generate() takes one")
        return AsCompleted(own._batch(call, errors, None))

    def _call(self, prompt: Any, options: GenerateOptions[Any], n: int | None = None) -> "_Call":
        """Check the options and the prompts of a call."""
        params = self.params(options, 1 if n is None else check_draws(n))  # reports a misspelt option before the prompt
        prompts, several = self.prompts(prompt, options)
        check_captures(params, self.engine.facts, len(prompts) * (n or 1))
        inputs: Any = (prompt if options.get("token_ids") is None else options["token_ids"]) if several else [prompt]
        return _Call(options, params, prompts, inputs, Shape(several, n))

    def _batch(self, call: "_Call", errors: Errors, progress: bool | None) -> Batch:
        """Return the batch of a call. Once started, it tokenizes its prompts and checks their lengths."""
        options, count = self._with_tool_grammar(call.options, call.prompts), call.shape.n or 1
        variants = draws(call.params if options is call.options else self.params(options, count), count)
        self.engine.check()
        labels = [label_of(*each) for each in zip(call.prompts, call.inputs, strict=True)]

        meanwhile = self._meanwhile()

        def submit(tokens: Prompt, params: SamplingParams, prompt: Prompt) -> Handle:
            submission = self._submission(tokens, params, options, tools_in(prompt), progress, meanwhile)
            return self._submit(replace(submission, label=text_of(prompt)))

        return Batch(call.prompts, labels, variants, call.shape, errors, self.engine.facts.preparer, submit)

    def params(self, options: GenerateOptions[Any], n: int = 1) -> SamplingParams:
        """Return the sampling parameters of a call, checked for the model; raises as `SamplingParams.from_options`."""
        params = settings.SamplingParams.from_options(options, self._options, n=n, beside=PromptOptions.__annotations__)
        params = params.with_counts(self.vocab_size)
        self.check_predicts()
        self.engine.client.adapters.check(params.adapter)
        check_params(params, self.engine.facts)
        return params

    def value_of(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return an option of a call, its own or the session's, unchecked and without a warning."""
        return options.get(name, self._options.get(name))

    def _with_tool_grammar(
        self, options: GenerateOptions[Any], prompts: Sequence[Prompt | Exception]
    ) -> GenerateOptions[Any]:
        """See `with_tool_grammar`."""
        return with_tool_grammar(
            options, prompts, self.tokenizer, self.render, lambda options: self.params(options).constraint
        )

    def prompts(self, prompt: Any, options: PromptOptions[Any]) -> tuple[list[Prompt | InvalidRequest], bool]:
        """Return the prompts of a call, and whether the call is a batch; see `all_prompts`."""
        if self._prefix is not None and prompt is None and options.get("token_ids") is None:
            return [prefix_prompt(self._prefix, options)], False
        prompts, batch = all_prompts(prompt, options, self.vocab_size, takes_empty=not self.engine.facts.model.predicts)
        self._notes.warn_unread(options.get("chat_template_kwargs") or {})
        if self._prefix is None:
            return prompts, batch
        return each_of(prompts, partial(continuation, self._prefix), batch), batch

    def pooled_prompts(self, texts: Any, options: PromptOptions[Any]) -> tuple[list[Prompt | InvalidRequest], bool]:
        """Return the prompts of a call without answers, and whether the call is a batch; see `prompts`."""
        prompts, batch = self.prompts(texts, options)
        return [each if isinstance(each, InvalidRequest) else unanswered(each) for each in prompts], batch

    def note_once(self, subject: str, text: str) -> None:
        """Display a note about a subject, once per session, unless the session draws no progress."""
        self._notes.note_once(subject, text)

    def check_predicts(self) -> None:
        """Raise InvalidRequest if the model has no language-model head."""
        self.engine.facts.checkpoint.uses.check_generates()

    def _submission(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: GenerateOptions[Any],
        tools: ToolSchemas | None,
        progress: bool | None = None,
        meanwhile: str | None = None,
    ) -> Submission:
        """Return the submission of a request.

        Args:
            tools: the tools of the conversation; None if the prompt is not a conversation, so its answer is not parsed.
            meanwhile: the progress of the compilation, for many requests at once; None to look at it.
        """
        continues = goes_on(prompt) or params.constraint is not None
        reader = None if tools is None else reader_of(self.tokenizer, params, tools, goes_on=continues)
        one_call = bool(tools) and not options.get("parallel_tool_calls", True)
        matters = one_call or bool(params.stop) or params.thinking_budget is not None
        return Submission(
            prompt,
            params,
            reader=reader,
            repetition=self._repetition_limit(params),
            turn=AssistantTurn(names_of(tools or ()), one_call) if reader is not None and matters else None,
            origin=self._origin(prompt, options, tools, self._meanwhile() if meanwhile is None else meanwhile),
            progress=self.draws_progress(progress),
            capturing=None if params.capture is None else self._capturing(),
            label=text_of(prompt),
        )

    def _capturing(self) -> AnswerCaptures:
        engine = self.engine
        return engine.facts.capturing(ask=lambda question: engine.ask(question)[1], error=lambda: engine.thread.error)

    def _repetition_limit(self, params: SamplingParams) -> RepetitionLimit | None:
        """Return the limit of a call, or else of its chat, for free texts that may end."""
        if params.stop_on_repetition is not None:
            return params.stop_on_repetition or None
        return None if params.constraint is not None or params.ignore_eos else self._repetition

    def _submit(self, submission: Submission, *, wait: bool = True) -> Handle:
        self.engine.check()
        if isinstance(submission.prompt, tuple):  # the intake checks the length of text after tokenizing it
            whole = PicturedTokens(submission.prompt, ())
            tokens = self.engine.facts.preparer.prompts.cut(whole, submission.params).ids
            tokens += submission.output_prefix.token_ids
            check_length(tokens, self.engine.facts.limits.max_context, submission.params.max_tokens != 0)
        if submission.params.steers:
            self.engine.facts.prepare_steering()
        return self.engine.submit(submission, wait=wait, drawer=self._drawer)

    def _meanwhile(self) -> str:
        """Return the progress of the compilation, as text; empty if no program is being compiled."""
        programs = self.engine.facts.programs.readiness()
        return programs.summary if programs.compiled else ""

    def _origin(
        self, prompt: Prompt, options: GenerateOptions[Any], tools: ToolSchemas | None, meanwhile: str
    ) -> Branches:
        living, defaults = ref(self.engine), self._options
        draw, progress, repetition = self._draw, self._progress, self._repetition

        def factory() -> Requests:
            engine = living()
            if engine is None:
                raise SessionClosed("the session of this generation is closed; open it again and generate again")
            return Requests(engine, defaults, draw, progress, repetition=repetition)

        names = (*SamplingOptions.__annotations__, "parallel_tool_calls")
        own = cast(GenerateOptions[Any], {name: value for name, value in options.items() if name in names})
        most = self.engine.facts.limits.max_context
        if not has_images(prompt):
            return Branches(factory, own, meanwhile, tools, max_context=most)
        images = self.engine.facts.preparer.prompts.images
        token = None if images is None else images.placeholder
        return Branches(factory, own, meanwhile, tools, prompt, token, most)
