"""Requests as a session and its prefixes make them: checked, sent to the engine, and awaited together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any, Protocol, cast, get_args
from weakref import ref

from rekindle.client.batches.batch import Batch, check_errors, check_progress
from rekindle.client.batches.loop import AsCompleted, Streams
from rekindle.client.batches.run import Errors, Shape
from rekindle.client.branches import Branches
from rekindle.client.drawing import Drawer, Report, until_over
from rekindle.client.engine_client import EngineClient
from rekindle.client.handle import Handle, Stream
from rekindle.client.prompts import (
    GenerateOptions,
    PromptOptions,
    ToolSchemas,
    all_prompts,
    as_it_is,
    asked,
    continued,
    each_of,
    one_prompt,
    tools_in,
    unfinished,
)
from rekindle.client.submission import Reader, Submission
from rekindle.core.concurrency.waits import Waits
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.engine.thread import EngineThread
from rekindle.core.errors import InvalidRequest, SessionClosed
from rekindle.core.messages import Conversation, OutputPrefix, Prompt, goes_on
from rekindle.core.request.checks import boolean
from rekindle.core.request.constraint import Kind
from rekindle.core.request.params import SamplingOptions, SamplingParams, check_draws, draws
from rekindle.core.request.request import Pooling, check_length
from rekindle.core.text.responses.choosing import grammar_of_choice
from rekindle.core.text.responses.formats import format_of
from rekindle.core.text.responses.reading import TemplateReading
from rekindle.core.text.tokenizer import Tokenizer


class Asker(Protocol):
    """A session, as the operations of its other rooms see it."""

    _requests: "Requests"


@dataclass(frozen=True, slots=True)
class _Call:
    """A checked call for generations.

    Attributes:
        ask: its keywords.
        params: the sampling parameters.
        prompts: each, or the error for which it cannot be one.
        given: each as it was given.
        shape: that of what is returned.
    """

    ask: GenerateOptions[Any]
    params: SamplingParams
    prompts: Sequence[Prompt | InvalidRequest]
    given: Sequence[Any]
    shape: Shape


class Requests:
    """Makes the requests of one session, or those that continue one prefix of it.

    Args:
        options: sampling options of calls that do not give them.
        draw: makes the drawing of a session's requests from the report of the program that its engine waits for.
        progress: whether to draw how far a call is, where it does not say.
        prefix: what all prompts continue; None for those of the session itself.

    Attributes:
        loaded_engine: the engine's parts and the model.
    """

    def __init__(
        self,
        engine: EngineThread,
        loaded_engine: LoadedEngine,
        client: EngineClient,
        options: Mapping[str, Any],
        draw: Callable[[Report], Drawer],
        progress: bool,
        prefix: Prompt | None = None,
    ):
        self._engine, self.loaded_engine, self._client = engine, loaded_engine, client
        self._options, self._draw, self._progress, self._prefix = options, draw, progress, prefix
        self._drawing = draw(loaded_engine.programs.awaited)

    @property
    def served(self) -> bool:
        """Tell whether the session is neither closed nor failed."""
        return self._engine.error is None

    def continuing(self, prefix: Prompt, cache_salt: str) -> "Requests":
        """Return what makes the requests that continue a prefix, with the cached prefixes of this salt."""
        options = {**self._options, "cache_salt": cache_salt}
        return Requests(self._engine, self.loaded_engine, self._client, options, self._draw, self._progress, prefix)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model, if it has one."""
        return self.loaded_engine.tokenizer

    @property
    def vocab_size(self) -> int:
        """The bound that token ids are below."""
        return self.loaded_engine.model.vocab_size

    def draws(self, progress: bool | None) -> bool:
        """Tell whether a call draws how far it is; None leaves that to what `open` was told.

        Raises:
            InvalidRequest: it is no bool.
        """
        return self._progress if progress is None else boolean("progress", progress)

    def begin(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        ask: GenerateOptions[Any],
        output_prefix: OutputPrefix,
        told: ToolSchemas | None,
    ) -> Handle:
        """Make a request whose output begins with given tokens.

        Args:
            told: the tools of the conversation that the output answers; None if it answers none.
        """
        return self._submit(replace(self._submission(prompt, params, ask, told), output_prefix=output_prefix))

    def compute(self, prompt: Prompt, params: SamplingParams, pooling: Pooling | None = None) -> Handle:
        """Make a request whose logprobs or hidden states are wanted, and not its text."""
        return self._submit(replace(self._submission(prompt, params, {}, None), pooling=pooling))

    def hold(self, prefix: Prompt) -> Handle:
        """Make a request that computes a prefix, and holds it in the prefix cache until it is withdrawn."""
        return self._submit(replace(self._submission(unfinished(prefix), self.params({}), {}, None), hold=True))

    def prompt(self, prompt: Any, options: PromptOptions[Any]) -> Prompt:
        """Return the prompt of a call that takes one; raises as `all_prompts` and `one_prompt`."""
        return one_prompt(*self.prompts(prompt, options))

    def one(self, prompt: Any, ask: GenerateOptions[Any], *, wait: bool) -> Handle:
        """Make one request; if it is to wait, it waits outside while the waiting queue is full."""
        params = self.params(ask)  # a keyword that is misspelt is told before a prompt that it lacks
        return self.made(self.prompt(prompt, ask), params, ask, wait=wait)

    def made(
        self,
        prompt: Prompt,
        params: SamplingParams,
        ask: GenerateOptions[Any],
        *,
        wait: bool = True,
        progress: bool | None = None,
    ) -> Handle:
        """Make the request of a prompt that was checked, and of the parameters of its call."""
        held = self._held(ask, [prompt])
        params = params if held is ask else self.params(held)
        return self._submit(self._submission(prompt, params, held, tools_in(prompt), progress), wait=wait)

    def answer(self, chat: Conversation, ask: GenerateOptions[Any], prompt: Prompt | None) -> Handle:
        """Make a request for the answer to a conversation; its prompt is given where it is tokenized in part."""
        held = self._held(ask, [chat])
        return self._submit(self._submission(prompt or chat, self.params(held), held, chat.tools or ()))

    def rendered(self, chat: Conversation) -> str:
        """Return a conversation as the model's chat template writes it; raises InvalidRequest if it cannot."""
        return self.loaded_engine.preparer.rendered(chat)

    def call(
        self,
        prompt: Any,
        ask: GenerateOptions[Any],
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
    ) -> Handle | Batch:
        """Check a call for generations; return the request of one prompt, or the batch of several, to be begun."""
        call = self._call(prompt, ask, n)
        check_errors(errors, call.shape)
        check_progress(progress, call.shape)
        if call.shape.listed:
            return self._batch(call, errors, progress)
        return self.made(one_prompt(call.prompts, call.shape.several), call.params, ask, progress=progress)

    def all(
        self, prompt: Any, ask: GenerateOptions[Any], n: int | None, errors: Errors, progress: bool | None
    ) -> Waits[Any]:
        """Check a call for generations now, and return the wait for them; they wait outside while the queue is full."""
        called = self.call(prompt, ask, n=n, errors=errors, progress=progress)
        if isinstance(called, Handle):
            return called.ended()
        return called.ended(self._drawing.batch(called.variants[0].max_tokens) if self.draws(progress) else until_over)

    def stream(self, prompt: Any, ask: GenerateOptions[Any]) -> Stream | Streams:
        """Return the pieces of one request, which is made now, or of several, which are made when the loop begins."""
        called = self.call(prompt, ask)
        return Stream(called) if isinstance(called, Handle) else Streams(called)

    def submitted(self, prompt: Any, ask: GenerateOptions[Any], n: int | None) -> Waits[list[Handle]]:
        """Check a call for generations now, and return the wait for their requests; see `Session.submit_all`."""
        batch = self._batch(self._call(prompt, ask, n), "raise", progress=False)
        self._client.check_room()
        return batch.submitted()

    def as_completed(self, prompt: Any, ask: GenerateOptions[Any], errors: Errors) -> AsCompleted[Any]:
        """Return the outcomes of several requests as they come."""
        call = self._call(prompt, ask)
        check_errors(errors, call.shape)
        if not call.shape.listed:
            raise InvalidRequest("as_completed() takes a list of prompts, and got one prompt; generate() takes one")
        return AsCompleted(self._batch(call, errors, None))

    def _call(self, prompt: Any, ask: GenerateOptions[Any], n: int | None = None) -> "_Call":
        """Check the keywords and the prompts of a call."""
        params = self.params(ask, 1 if n is None else check_draws(n))  # a misspelt keyword before a missing prompt
        prompts, several = self.prompts(prompt, ask)
        given: Any = (prompt if ask.get("token_ids") is None else ask["token_ids"]) if several else [prompt]
        return _Call(ask, params, prompts, given, Shape(several, n))

    def _batch(self, call: "_Call", errors: Errors, progress: bool | None) -> Batch:
        """Return the requests of a call; its prompts are checked further once they are made."""
        ask, count = self._held(call.ask, call.prompts), call.shape.n or 1
        variants = draws(call.params if ask is call.ask else self.params(ask, count), count)
        self.check_engine()
        labels = [asked(*each) for each in zip(call.prompts, call.given, strict=True)]

        def submit(prompt: Prompt, params: SamplingParams, told: ToolSchemas | None) -> Handle:
            return self._submit(self._submission(prompt, params, ask, told, progress))

        return Batch(call.prompts, labels, variants, call.shape, errors, self.loaded_engine.preparer, submit)

    def params(self, ask: GenerateOptions[Any], n: int = 1) -> SamplingParams:
        """Return the sampling parameters of a call; raises as `SamplingParams.from_options`."""
        params = SamplingParams.from_options(ask, self._options, n=n, beside=PromptOptions.__annotations__)
        limits = self.loaded_engine.limits
        self.check_predicts()
        params.check_against(self.vocab_size, limits.max_logprobs)
        if params.processor_args is not None and not limits.processes_logits:
            raise InvalidRequest("processor_args are for a logits processor, and open() was given no logits_processor")
        return params

    def _held(self, ask: GenerateOptions[Any], prompts: Sequence[Prompt | Exception]) -> GenerateOptions[Any]:
        """Return the keywords of a call, with the grammar of the calls that its `tool_choice` asks for.

        Raises:
            InvalidRequest: there is no such tool, or another constraint beside it.
        """
        choice = ask.get("tool_choice", "auto")
        chat = next((each for each in prompts if isinstance(each, Conversation)), None)
        others = [name for name in get_args(Kind) if ask.get(name) is not None]
        if choice == "auto" and chat is not None and chat.tools and set(others) - {"grammar"}:
            raise InvalidRequest.of(
                others[0],
                f"{others[0]} says what the output is, so that no tools can be called: leave out tools or {others[0]}",
            )
        if choice in ("auto", "none") or all(isinstance(each, Exception) for each in prompts):
            return ask
        if chat is None or self.tokenizer is None:
            raise InvalidRequest(
                f"tool_choice={choice!r} is for answers to conversations, whose chat template tells of tools: give a "
                "list of {role, content} messages as the prompt"
            )
        if others:
            raise InvalidRequest(f"tool_choice={choice!r} says what the output is, so leave out {others[0]}")
        if chat.tools is None:
            raise InvalidRequest(f"tool_choice={choice!r} needs tools, and none were given")
        grammar = grammar_of_choice(choice, chat.tools, self.rendered(chat), self.tokenizer)
        return cast(GenerateOptions[Any], {**ask, "grammar": grammar})

    def prompts(self, prompt: Any, options: PromptOptions[Any]) -> tuple[list[Prompt | InvalidRequest], bool]:
        """Return the prompts of a call, and whether they came as a list; see `all_prompts`."""
        if self._prefix is None:
            return all_prompts(prompt, options, self.vocab_size)
        if prompt is None and options.get("token_ids") is None:
            return [as_it_is(self._prefix, options)], False
        prompts, batch = all_prompts(prompt, options, self.vocab_size)
        return each_of(prompts, partial(continued, self._prefix), batch), batch

    def check_predicts(self) -> None:
        """Check that the model predicts tokens.

        Raises:
            InvalidRequest: it has no head for that.
        """
        uses = self.loaded_engine.checkpoint.uses
        if not uses.generates:
            labels = 0 if uses.classifier is None else len(uses.classifier.labels)
            others = {0: "", 1: ", classify() and rerank()"}.get(labels, " and classify()")
            raise InvalidRequest(
                f"{self.loaded_engine.source} has no head that predicts tokens, so it generates and scores nothing: it "
                f"is for embed(){others}"
            )

    def check_engine(self) -> None:
        """Raise the error of an engine that has ended."""
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)

    def _submission(
        self,
        prompt: Prompt,
        params: SamplingParams,
        ask: GenerateOptions[Any],
        told: ToolSchemas | None,
        progress: bool | None = None,
    ) -> Submission:
        """Return a checked request, which `ask` has the keywords of.

        An answer to a conversation, which has `told` of some tools or of none, is taken apart.
        """
        reader = None if told is None else self._reader(params, told, goes_on(prompt) or params.constraint is not None)
        return Submission(
            prompt,
            params,
            reader=reader,
            origin=self._origin(ask, told),
            drawing=self._drawing,
            progress=self.draws(progress),
        )

    def _submit(self, submission: Submission, *, wait: bool = True) -> Handle:
        self.check_engine()
        if isinstance(submission.prompt, tuple):  # text has to be tokenized first, which the intake does
            tokens = submission.prompt + submission.output_prefix.token_ids
            check_length(tokens, self.loaded_engine.limits.max_context, submission.params.max_tokens != 0)
        return self._client.submit(submission, self._engine.post, wait=wait)

    def _reader(self, params: SamplingParams, told: ToolSchemas, goes_on: bool) -> Reader | None:
        """Return what takes answers apart; None if there is nothing to be taken apart.

        A schema, a regular expression or choices leave no room for reasoning and calls, and their text is the answer.
        """
        if params.constraint is not None and params.constraint.kind != "grammar":
            return None
        if self.tokenizer is None or (answers := format_of(self.tokenizer)).template is None:
            return None
        shows_special = not params.skip_special_tokens
        return partial(
            TemplateReading,
            answers,
            self.tokenizer,
            shows_special=shows_special,
            tools=told,
            goes_on=goes_on,
            salt=token_hex(),  # so that no two answers have calls of the same id
        )

    def _origin(self, ask: GenerateOptions[Any], told: ToolSchemas | None) -> Branches:
        engine, client, options = ref(self._engine), self._client, self._options
        draw, progress = self._draw, self._progress

        def maker() -> Requests:
            found = engine()
            if found is None or found.loaded_engine is None:
                raise SessionClosed("the session that made this generation is gone; open it again, and ask again")
            return Requests(found, found.loaded_engine, client, options, draw, progress)

        programs, names = self.loaded_engine.programs.readiness(), SamplingOptions.__annotations__
        sampling = cast(SamplingOptions, {name: value for name, value in ask.items() if name in names})
        return Branches(maker, sampling, programs.said if programs.compiled else "", told)
