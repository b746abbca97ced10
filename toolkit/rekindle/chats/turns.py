"""Turns of a conversation: their options, the requests for their answers, and the drawing of tool results."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import numpy as np

from rekindle import markup
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.chats.turn_tokens import NO_TOKENS, TurnTokens
from rekindle.client.calls.options import GENERATE_DEFAULTS, UNLIMITED, GenerateOptions, PromptOptions
from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.client.window import FULL, REMEDY, WHOLE, Fit, WhenFull, WindowSizes, Words, fitting
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import NO_PREFIX, Conversation, OutputPrefix, Prompt
from rekindle.core.request.checks import boolean
from rekindle.core.request.params import SamplingOptions
from rekindle.formats.images.parts import images_in
from rekindle.formats.images.sources import ImagePixels, ImageSource
from rekindle.formats.images.videos import Video
from rekindle.formats.rendering.system_messages import SYSTEM_ROLES
from rekindle.notebook import front_end
from rekindle.notebook.live_text import Cell
from rekindle.notebook.showing import show_one
from rekindle.results.generation import Generation
from rekindle.results.tool_run import ToolStep, results_html, results_text
from rekindle.tools.tool import schemas_of

Draw = Callable[[Handle], Waits[Generation]]
"""Waits for the answer of a request, and draws it meanwhile."""


class TurnOptions(SamplingOptions, total=False):
    """Options of a turn: sampling parameters, and options for tools and the chat template.

    Attributes:
        tool_choice: as in `generate`, for the first answer of the turn.
        parallel_tool_calls: as in `generate`.
        chat_template_kwargs: additional variables of the chat template, by name.
    """

    tool_choice: str
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any] | None


class SayOptions(TurnOptions, total=False):
    """Options of a turn with a new message.

    Attributes:
        images: images for the message, in the forms of `generate`; they come before its text.
    """

    images: Sequence[Any] | None


_RESULT_WITH_PICTURE: Final[Sequence[Mapping[str, Any]]] = (
    {"role": "user", "content": "look"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {}}}],
    },
    {
        "role": "tool",
        "tool_call_id": "call00000",
        "name": "look",
        "content": [{"type": "image", "image": ImagePixels(np.zeros((64, 64, 3), np.uint8))}],
    },
)
"""A conversation to find out whether a chat template has a place for pictures in results."""
SAY_DEFAULTS: dict[str, Any] = {name: GENERATE_DEFAULTS[name] for name in SayOptions.__annotations__} | UNLIMITED
TURN_DEFAULTS: dict[str, Any] = {name: GENERATE_DEFAULTS[name] for name in TurnOptions.__annotations__} | UNLIMITED


class Turn:
    """Turn of a conversation: requests its answer, or several answers with tool calls between them.

    Args:
        requests: the requests of the session.
        tools: the JSON schemas of the tools for the model.
        options: the options of each request.
        turn_tokens: the tokens of earlier turns.
        fit: what to do when the conversation is too long; None leaves that to the engine.

    Attributes:
        options: as above.
        turn_tokens: as above, including all answers so far.
        window: the part of the conversation in the latest request.
        opening: the first tokens of the next answer; none for an answer from its first token on.
        handle: the latest request; None before the first.
    """

    def __init__(
        self,
        requests: Requests,
        tools: Sequence[Mapping[str, Any]],
        options: TurnOptions,
        turn_tokens: TurnTokens = NO_TOKENS,
        fit: Fit | None = None,
    ):
        self._requests, self._tools, self.options, self._fit = requests, tools, options, fit
        self.turn_tokens, self.window = turn_tokens, fit.window if fit else WHOLE
        self.handle: Handle | None = None
        self.opening = NO_PREFIX
        self._rendered, self._is_plain = "", True
        self._images: tuple[tuple[ImageSource | Video, Any], ...] = ()
        self._choice = options.get("tool_choice", "auto")  # only for the first answer; later ones choose freely

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> Waits[None]:
        """Fit the window to a conversation, unless its prompt is cut by tokens.

        Raises:
            InvalidRequest, PromptTooLong: as in `fitting`; or the messages or the options are invalid.
        """
        fit = self._fit
        if fit is None or self.options.get("truncate_prompt_tokens") is not None:
            return
        context = self._prompts.capacity - len(self.opening.token_ids)
        sizes = WindowSizes.of(context, self._most, self._count, self._weigh)
        self.window = yield from fitting(messages, replace(fit, window=self.window), sizes)

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> Handle:
        """Submit the request for the next answer to the messages in the window.

        Raises:
            InvalidRequest: the messages or the options are invalid.
        """
        choice = self._choice
        chat = self._conversation(self.window.of(messages), choice)
        prompt = self._prompt(chat)
        options, opening = {**self.options, "tool_choice": choice}, self._checked_opening()
        if opening.token_ids and self._most is not None:  # which counts them too
            options["max_tokens"] = self._most + len(opening.token_ids)
        self.handle = self._requests.answer(chat, cast(GenerateOptions[Any], options), prompt, opening)
        self._choice, self.opening = "auto", NO_PREFIX
        return self.handle

    def _checked_opening(self) -> OutputPrefix:
        """Return the first tokens of the next answer, with their log-probabilities if it has some.

        Raises:
            InvalidRequest: theirs are not known.
        """
        opening = self.opening
        if self._requests.value_of("logprobs", self.options) is None:
            return replace(opening, logprobs=None)
        if opening.token_ids and opening.logprobs is None:
            raise InvalidRequest.of(
                "logprobs",
                "a continued answer with logprobs begins with those of its first tokens, and they are not known: leave "
                "out logprobs",
            )
        return opening

    def begin_with(self, messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
        """Begin the next answer with the text of a message, as the chat template writes it.

        Args:
            messages: the conversation before the message.
            answer: the message.

        Raises:
            InvalidRequest: the template begins an answer otherwise than it writes this one.
        """
        before = self.window.of(messages)
        start = self._requests.render(self._conversation(before, self._choice))
        whole = self._requests.render(
            replace(self._conversation([*before, answer], self._choice), continue_final_message=True)
        )
        if not whole.startswith(start) or self._requests.tokenizer is None:
            raise InvalidRequest(
                "the answer cannot be continued, because its tokens are not known any more, and the chat template "
                "begins an answer otherwise than it writes an earlier one: chat.retry() answers anew"
            )
        self.opening = OutputPrefix(tuple(self._requests.tokenizer.encode_chat(whole[len(start) :])))

    @property
    def _most(self) -> int | None:
        """Maximum number of new tokens; None for answers to the end of the context."""
        most = self._requests.value_of("max_tokens", self.options)
        return most if isinstance(most, int) and most >= 0 else None

    def _prompt(self, chat: Conversation) -> Prompt | None:
        """Return the prompt of a conversation with the tokens of earlier turns, and note its text; None without."""
        self._images = tuple(images_in(chat.messages))
        self._is_plain = self._prompts.is_plain(chat)
        self._rendered = self._requests.render(chat) if self._is_plain else ""
        return self.turn_tokens.prompt(self._rendered, self._images) if self._is_plain else None

    def _count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of tokens of messages as a prompt; of a text far too long, a lower bound."""
        chat = self._conversation(messages, self._choice)
        prompt = self._prompt(chat)
        if prompt is None and not self._images and (tokenizer := self._requests.tokenizer) is not None:
            capacity = self._prompts.capacity
            if (fewest := tokenizer.fewest(self._rendered, capacity)) > capacity:
                return fewest
        return self._prompts.count(prompt or chat)

    def _weigh(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of tokens of messages alone, without the tools and system messages."""
        own = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
        variables: PromptOptions[Any] = {"chat_template_kwargs": self.options.get("chat_template_kwargs")}
        return self._prompts.count(self._requests.conversation(own, variables)) if own else 0

    def take(self, answer: Generation) -> None:
        """Record the tokens of the latest answer, unless its prompt was cut, since a later one is cut anew.

        Tokens of images among words are not recorded either: in the text, they are like images.
        """
        images, tokenizer = self._prompts.images, self._requests.tokenizer
        if not self._is_plain or (images is not None and images.has_tokens(answer.token_ids)):
            return
        assert tokenizer is not None, "rendering a conversation needs a tokenizer"
        may_cut = self.options.get("truncate_prompt_tokens") is not None
        if may_cut and tokenizer.decode(answer.prompt_token_ids, skip_special_tokens=False) != self._rendered:
            return
        self.turn_tokens = self.turn_tokens.with_turn(self._rendered, self._images, answer, tokenizer)

    def message(self, messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the message of the latest answer, without spaces before it that the chat template writes itself.

        The next prompt then continues the tokens of the answer.

        Args:
            messages: the conversation before the answer.
            answer: its message.
        """
        content, prefixes = answer.get("content"), self.turn_tokens.prefixes
        if not self._is_plain or not prefixes or not isinstance(content, str) or not content.startswith(" "):
            return answer
        stripped = {**answer, "content": content.lstrip(" ")}
        for each in (answer, stripped):
            chat = self._conversation([*self.window.of(messages), each])
            if self._requests.render(chat).startswith(prefixes[-1].text):
                return each
        return answer

    def _conversation(self, messages: Sequence[Mapping[str, Any]], choice: str = "auto") -> Conversation:
        """Return messages with the tools and the template variables of the turn."""
        options: PromptOptions[Any] = {
            "chat_template_kwargs": self.options.get("chat_template_kwargs"),
            "tool_choice": choice,
            "parallel_tool_calls": self.options.get("parallel_tool_calls", True),
        }
        if self._tools:
            options["tools"] = self._tools
        return self._requests.conversation(messages, options)

    def sees(self) -> bool:
        """Return True for a model whose chat template has a place for pictures in the results of tools."""
        if self._prompts.images is None:
            return False
        try:
            self._prompts.rendered(self._conversation(_RESULT_WITH_PICTURE))
        except InvalidRequest:
            return False
        return True

    @property
    def _prompts(self) -> PromptReader:
        return self._requests.engine.facts.preparer.prompts

    def take_interrupted(self) -> Generation | None:
        """Return the text so far of an interrupted answer, and record its tokens; None if no answer has opening."""
        if self.handle is None or self.handle.generation is not None:
            return None
        answer = self.handle.record.so_far()
        if not answer.text:
            return None
        self.take(answer)
        return answer

    def answer(self, messages: Sequence[Mapping[str, Any]], draw: Draw) -> Waits[Generation]:
        """Wait for the next answer, and draw it meanwhile."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        yield from self.fit(messages)
        answer = yield from draw(self.ask(messages))
        self.take(answer)
        return answer


def fitted(
    requests: Requests, messages: Sequence[Mapping[str, Any]], options: GenerateOptions[Any], when_full: WhenFull
) -> Waits[list[Mapping[str, Any]]]:
    """Return the messages to send of a conversation that somebody else keeps.

    Args:
        options: the options of the request with them.
        when_full: as in `session.chat`.

    Raises:
        InvalidRequest, PromptTooLong: as in `Turn.fit`.
    """
    words = Words(lambda: requests.note_once("full chat", FULL), REMEDY)
    tools = options.get("tools")
    turn = Turn(
        requests,
        () if tools is None else schemas_of(tools),
        cast(TurnOptions, options),
        fit=Fit(when_full, WHOLE, words),
    )
    yield from turn.fit(messages)
    return turn.window.of(messages)


def drawing(cell: Cell | None) -> Draw:
    """Return the drawing of answers as they arrive; without a cell, a plain wait for the answer."""
    return Handle.wait_ended if cell is None else partial(show_one, cell=cell)


def draws(show: bool | None) -> bool:
    """Return True if turns are drawn; the default is True in a notebook."""
    return front_end.in_notebook() if show is None else boolean("show", show)


def draw_results(step: ToolStep) -> None:
    """Draw the results of a step's calls; in a terminal, print them."""
    if front_end.in_notebook():
        front_end.CellOutput().draw(markup.bundle(results_text(step.results), results_html(step.results)))
    elif sys.stdout is not None:
        sys.stdout.write(f"{results_text(step.results)}\n")
        sys.stdout.flush()
