"""Requests as a session and its prefixes make them: checked, sent to the engine, and awaited together."""

from collections.abc import Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, cast, get_args
from weakref import ref

from rekindle.client.batches.batch import Batch, check_errors, check_progress
from rekindle.client.batches.requested import Errors, Shape
from rekindle.client.batches.together import AsCompleted, Streams
from rekindle.client.branches import Branches
from rekindle.client.callers import Callers
from rekindle.client.handle import Handle, Stream
from rekindle.client.prompts import (
    Ask,
    PromptOptions,
    Told,
    all_prompts,
    as_it_is,
    asked,
    continued,
    each_of,
    one_prompt,
    tools_in,
    unfinished,
)
from rekindle.client.record import Reader
from rekindle.core.concurrency.waits import Waits, way
from rekindle.core.engine.assembly import Assembly
from rekindle.core.engine.thread import EngineThread
from rekindle.core.errors import InvalidRequest, SessionClosed
from rekindle.core.messages import NOTHING, Begun, Chat, Prompt, goes_on
from rekindle.core.request.checks import boolean
from rekindle.core.request.constraint import Kind
from rekindle.core.request.params import SamplingOptions, SamplingParams, check_draws, draws
from rekindle.core.request.request import Pooling, check_length
from rekindle.core.text.responses.choosing import grammar_of_choice
from rekindle.core.text.responses.formats import format_of
from rekindle.core.text.responses.reading import Reading
from rekindle.core.text.tokenizer import Tokenizer


class Requests:
    """Makes the requests of one session, or those that continue one prefix of it.

    Args:
        options: sampling options of calls that do not give them.
        progress: whether to draw how far a batch is, where its call does not say.
        prefix: what all prompts continue; None for those of the session itself.
    """

    def __init__(
        self,
        engine: EngineThread,
        assembly: Assembly,
        callers: Callers,
        options: Mapping[str, Any],
        progress: bool,
        prefix: Prompt | None = None,
    ):
        self._engine, self._assembly, self._callers = engine, assembly, callers
        self._options, self._progress, self._prefix = options, progress, prefix

    @property
    def served(self) -> bool:
        """Tell whether the session is neither closed nor failed."""
        return self._engine.error is None

    def continuing(self, prefix: Prompt, cache_salt: str) -> "Requests":
        """Return what makes the requests that continue a prefix, with the cached prefixes of this salt."""
        options = {**self._options, "cache_salt": cache_salt}
        return Requests(self._engine, self._assembly, self._callers, options, self._progress, prefix)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model, if it has one."""
        return self._assembly.tokenizer

    @property
    def vocab_size(self) -> int:
        """The bound that token ids are below."""
        return self._assembly.model.vocab_size

    def draws(self, progress: bool | None) -> bool:
        """Tell whether a call draws how far it is; None leaves that to what `open` was told.

        Raises:
            InvalidRequest: it is no bool.
        """
        return self._progress if progress is None else boolean("progress", progress)

    def begin(
        self, prompt: tuple[int, ...], params: SamplingParams, ask: Ask[Any], begun: Begun, told: Told | None
    ) -> Handle:
        """Make a request whose output begins with given tokens.

        Args:
            told: the tools of the conversation that the output answers; None if it answers none.
        """
        return self._submit(prompt, params, told, ask=ask, wait=True, begun=begun)

    def compute(self, prompt: Prompt, params: SamplingParams, pooling: Pooling | None = None) -> Handle:
        """Make a request whose output is not text: what it says of its prompt, or of its first token, is looked at."""
        return self._submit(prompt, params, None, ask={}, wait=True, pooling=pooling)

    def prompt(self, prompt: Any, options: PromptOptions[Any]) -> Prompt:
        """Return the prompt of a call that takes one; raises as `all_prompts` and `one_prompt`."""
        return one_prompt(*self.prompts(prompt, options))

    def one(self, prompt: Any, ask: Ask[Any], *, wait: bool) -> Handle:
        """Make one request; if it is to wait, it waits outside while the waiting queue is full."""
        params = self.params(ask)  # a keyword that is misspelt is told before a prompt that it lacks
        return self.made(self.prompt(prompt, ask), params, ask, wait=wait)

    def made(self, prompt: Prompt, params: SamplingParams, ask: Ask[Any], *, wait: bool) -> Handle:
        """Make the request of a prompt that was checked, and of the parameters of its call."""
        held = self._held(ask, [prompt])
        params = params if held is ask else self.params(held)
        return self._submit(prompt, params, tools_in(prompt), ask=held, wait=wait)

    def answer(self, chat: Chat, ask: Ask[Any], prompt: Prompt | None) -> Handle:
        """Make a request for the answer to a conversation; its prompt is given where it is tokenized in part."""
        held = self._held(ask, [chat])
        return self._submit(prompt or chat, self.params(held), chat.tools or (), ask=held, wait=True)

    def rendered(self, chat: Chat) -> str:
        """Return a conversation as the model's chat template writes it; raises InvalidRequest if it cannot."""
        return self._assembly.preparer.rendered(chat)

    def all(self, prompt: Any, ask: Ask[Any], n: int | None, errors: Errors, progress: bool | None) -> Waits[Any]:
        """Check a call for generations now, and return the wait for them; they wait outside while the queue is full."""
        batch = self._batch(prompt, ask, n, errors, progress)
        check_progress(progress, batch.shape)
        return batch.ended() if batch.shape.listed else self._alone(batch).ended()

    def shown(self, prompt: Any, ask: Ask[Any], errors: Errors) -> Waits[Any]:
        """Check a call for generations, wait for them, and draw them meanwhile."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        cell, batch = (yield from way()), self._batch(prompt, ask, errors=errors)
        return (yield from batch.shown(cell) if batch.shape.listed else self._alone(batch).shown(cell))

    def stream(self, prompt: Any, ask: Ask[Any]) -> Stream | Streams:
        """Return the pieces of one request, which is made now, or of several, which are made when the loop begins."""
        batch = self._batch(prompt, ask)
        return Streams(batch) if batch.shape.listed else Stream(self._alone(batch))

    def submitted(self, prompt: Any, ask: Ask[Any], n: int | None) -> Waits[list[Handle]]:
        """Check a call for generations now, and return the wait for their requests; see `Session.submit_all`."""
        batch = self._batch(prompt, ask, n, progress=False)
        self._callers.check_room()
        return batch.submitted()

    def as_completed(self, prompt: Any, ask: Ask[Any], errors: Errors) -> AsCompleted[Any]:
        """Return the outcomes of several requests as they come."""
        batch = self._batch(prompt, ask, errors=errors)
        if not batch.shape.listed:
            raise InvalidRequest("as_completed() takes a list of prompts, and got one prompt; generate() takes one")
        return AsCompleted(batch)

    def hold(self, prefix: Prompt) -> Handle:
        """Make a request that computes a prefix, and holds it in the prefix cache until it is withdrawn."""
        return self._submit(unfinished(prefix), self.params({}), None, ask={}, wait=True, hold=True)

    def _batch(
        self,
        prompt: Any,
        ask: Ask[Any],
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
    ) -> Batch:
        """Return the requests of a call; its prompts are checked further once they are made."""
        count = 1 if n is None else check_draws(n)
        params = self.params(ask, count)  # a keyword that is misspelt is told before a prompt that it lacks
        prompts, several = self.prompts(prompt, ask)
        held = self._held(ask, prompts)
        variants = draws(params if held is ask else self.params(held, count), count)
        shape = Shape(several, n)
        check_errors(errors, shape)
        self.check_engine()
        given: Any = (prompt if ask.get("token_ids") is None else ask["token_ids"]) if several else [prompt]
        said = [asked(*each) for each in zip(prompts, given, strict=True)]
        submit = partial(self._submit, ask=held, wait=True, progress=progress)
        return Batch(prompts, said, variants, shape, errors, self._assembly.preparer, submit, self.draws(progress))

    def _alone(self, batch: Batch) -> Handle:
        """Make the request of a call that takes one prompt, and no list."""
        prompt = one_prompt(batch.prompts, batch.shape.several)
        return batch.submit(prompt, batch.variants[0], tools_in(prompt))

    def params(self, ask: Ask[Any], n: int = 1) -> SamplingParams:
        """Return the sampling parameters of a call; raises as `SamplingParams.from_options`."""
        params = SamplingParams.from_options(ask, self._options, n=n, beside=PromptOptions.__annotations__)
        limits = self._assembly.limits
        self.check_predicts()
        params.check_against(self.vocab_size, limits.max_logprobs)
        if params.processor_args is not None and not limits.processes_logits:
            raise InvalidRequest("processor_args are for a logits processor, and open() was given no logits_processor")
        return params

    def _held(self, ask: Ask[Any], prompts: Sequence[Prompt | Exception]) -> Ask[Any]:
        """Return the keywords of a call, with the grammar of the calls that its `tool_choice` asks for.

        Raises:
            InvalidRequest: there is no such tool, or another constraint beside it.
        """
        choice = ask.get("tool_choice", "auto")
        chat = next((each for each in prompts if isinstance(each, Chat)), None)
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
        return cast(Ask[Any], {**ask, "grammar": grammar})

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
        uses = self._assembly.checkpoint.uses
        if not uses.generates:
            labels = 0 if uses.classifier is None else len(uses.classifier.labels)
            others = {0: "", 1: ", classify() and rerank()"}.get(labels, " and classify()")
            raise InvalidRequest(
                f"{self._assembly.source} has no head that predicts tokens, so it generates and scores nothing: it is "
                f"for embed(){others}"
            )

    def check_engine(self) -> None:
        """Raise the error of an engine that has ended."""
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        told: Told | None,
        *,
        ask: Ask[Any],
        wait: bool,
        hold: bool = False,
        begun: Begun = NOTHING,
        pooling: Pooling | None = None,
        progress: bool | None = None,
    ) -> Handle:
        """Make a request of a checked call, which `ask` has the keywords of.

        An answer to a conversation, which has `told` of some tools or of none, is taken apart.
        """
        self.check_engine()
        if isinstance(prompt, tuple):  # text has to be tokenized first, which the intake does
            longest = self._assembly.limits.max_context
            check_length(prompt + begun.token_ids, longest, params.max_tokens != 0)
        post = self._engine.post
        reader = None if told is None else self._reader(params, told, goes_on(prompt) or params.constraint is not None)
        origin = self._origin(ask, told)
        return self._callers.submit(
            prompt,
            params,
            post,
            wait=wait,
            hold=hold,
            begun=begun,
            origin=origin,
            reader=reader,
            pooling=pooling,
            report=self._assembly.awaited_program if self.draws(progress) else None,
        )

    def _reader(self, params: SamplingParams, told: Told, goes_on: bool) -> Reader | None:
        """Return what takes answers apart; None if there is nothing to be taken apart.

        A schema, a regular expression or choices leave no room for reasoning and calls, and their text is the answer.
        """
        if params.constraint is not None and params.constraint.kind != "grammar":
            return None
        if self.tokenizer is None or (answers := format_of(self.tokenizer)).template is None:
            return None
        shows_special = not params.skip_special_tokens
        return partial(
            Reading,
            answers,
            self.tokenizer,
            shows_special=shows_special,
            tools=told,
            goes_on=goes_on,
            salt=token_hex(),  # so that no two answers have calls of the same id
        )

    def _origin(self, ask: Ask[Any], told: Told | None) -> Branches:
        engine, callers, options, progress = ref(self._engine), self._callers, self._options, self._progress

        def maker() -> Requests:
            found = engine()
            if found is None or found.assembly is None:
                raise SessionClosed("the session that made this generation is gone; open it again, and ask again")
            return Requests(found, found.assembly, callers, options, progress)

        programs, names = self._assembly.readiness(), SamplingOptions.__annotations__
        sampling = cast(SamplingOptions, {name: value for name, value in ask.items() if name in names})
        return Branches(maker, sampling, programs.said if programs.compiled else "", told)
