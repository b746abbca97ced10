"""Submission of a request: the message for the engine, and the caller's options for the answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Protocol

from rekindle.client.concurrency.caller import current_caller
from rekindle.core.messages import NO_PREFIX, OutputPrefix, Prompt, Submit
from rekindle.core.request.activations.capture import Captured
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.repetition import RepetitionLimit
from rekindle.core.request.request import AdapterUse, AssistantTurn, States
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.response import Reading
from rekindle.results.generation import BranchOrigin

Reader = Callable[[tuple[int, ...]], Reading]
"""Returns a new parser of the answer to a prompt."""


def reader_of(
    tokenizer: Tokenizer | None, params: SamplingParams, tools: Sequence[Mapping[str, Any]], *, goes_on: bool
) -> Reader | None:
    """Return the function that creates parsers of answers; None for an answer of plain text.

    Schemas, regular expressions and choices leave no room for reasoning and calls in an answer.

    Args:
        tokenizer: the tokenizer of the model.
        params: the parameters of the request.
        tools: the JSON schemas of the tools.
        goes_on: as in `TemplateReading`.
    """
    if params.constraint is not None and params.constraint.kind != "grammar":
        return None
    if tokenizer is None:
        return None
    from rekindle.formats.responses.formats import format_of
    from rekindle.formats.responses.reading.reader import TemplateReading

    answers = format_of(tokenizer)
    if answers.template is None or (answers.is_plain and not tools):
        return None

    return partial(
        TemplateReading,
        answers,
        tokenizer,
        shows_special=not params.skip_special_tokens,
        tools=tools,
        goes_on=goes_on,
        salt=token_hex(),  # makes the ids of tool calls unique across answers
    )


class AnswerCaptures(Protocol):
    """Interface for the captures of finished answers; see `rekindle.assembly.capturing`."""

    def begin(
        self,
        params: SamplingParams,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        end: Callable[[Captured | Exception], None],
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Submission:
    """Request, and the caller's options for its answer.

    Attributes:
        prompt, params, hold, output_prefix, pooling: see `Submit`.
        reader: returns the parser of the answer; None for an answer of plain text.
        origin: submits branches of the generation; None if it has none.
        progress: whether a wait for the first token draws the compilation that the engine awaits.
        adapter: the adapter named by the parameters; the client finds it.
        repetition: see `Submit`.
        turn, synthetic: see `Submit`.
        capturing: captures the activations of the answer; None if the parameters ask for none.
        label: the text of the prompt, or the last user message of a conversation, for displays; None for token ids.
    """

    prompt: Prompt
    params: SamplingParams
    hold: bool = False
    output_prefix: OutputPrefix = NO_PREFIX
    pooling: States | None = None
    reader: Reader | None = None
    origin: BranchOrigin | None = None
    progress: bool = False
    adapter: AdapterUse | None = None
    repetition: RepetitionLimit | None = None
    turn: AssistantTurn | None = None
    synthetic: bool = False
    capturing: AnswerCaptures | None = None
    label: str | None = None

    def message(self, request_id: int) -> Submit:
        """Return the message for the engine, with the current task or thread as the caller."""
        return Submit(
            request_id,
            self.prompt,
            self.params,
            self.hold,
            current_caller(),
            self.output_prefix,
            self.pooling,
            adapter=self.adapter,
            repetition=self.repetition,
            turn=self.turn,
            synthetic=self.synthetic,
        )
