"""The turns of a conversation, each of which costs its new tokens alone."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rekindle.chats.known import NOTHING, Known
from rekindle.client.handle import Handle
from rekindle.client.prompts import GENERATE_DEFAULTS, GenerateOptions, PromptOptions, one_chat
from rekindle.client.requests import Requests
from rekindle.core import markup
from rekindle.core.concurrency.waits import Waits
from rekindle.core.request.checks import boolean
from rekindle.core.request.params import SamplingOptions
from rekindle.notebook import front_end
from rekindle.notebook.live_text import Cell
from rekindle.notebook.showing import show_one
from rekindle.results.generation import Generation
from rekindle.results.tool_run import ToolStep, results_html, results_text


class TurnOptions(SamplingOptions, total=False):
    """The keywords of a turn: sampling parameters, and what the chat template and the tools are told.

    Attributes:
        tool_choice: as in `generate`, for the first answer of the turn.
        chat_template_kwargs: further variables of the chat template, by name.
    """

    tool_choice: str
    chat_template_kwargs: Mapping[str, Any] | None


TURN_DEFAULTS: dict[str, Any] = {name: GENERATE_DEFAULTS[name] for name in TurnOptions.__annotations__}


class Turns:
    """Asks a model for its next turn in a conversation, once or several times.

    Args:
        requests: makes the requests.
        tools: the schemas of what the model may call.
        options: keywords of each request.
        known: what of the conversation is computed.

    Attributes:
        known: as above, with every turn that was answered.
    """

    def __init__(
        self, requests: Requests, tools: Sequence[Mapping[str, Any]], options: TurnOptions, known: Known = NOTHING
    ):
        self._requests, self._tools, self._options = requests, tools, options
        self.known = known
        self._rendered = ""
        self._choice = options.get("tool_choice", "auto")  # of the first answer: later ones may have to be no call

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> Handle:
        """Make the request for the next turn.

        Raises:
            InvalidRequest: the messages or the keywords cannot be served.
        """
        about: PromptOptions[Any] = {"chat_template_kwargs": self._options.get("chat_template_kwargs")}
        if self._tools:
            about["tools"] = self._tools
        choice, self._choice = self._choice, "auto"
        about["tool_choice"] = choice
        chat = one_chat(messages, about)
        self._rendered = self._requests.render(chat)
        prompt = self.known.prompt(self._rendered)
        ask = cast(GenerateOptions[Any], {**self._options, "tool_choice": choice})
        return self._requests.answer(chat, ask, prompt)

    def take(self, answer: Generation) -> None:
        """Note the tokens of the turn that was asked for last."""
        tokenizer = self._requests.tokenizer
        assert tokenizer is not None, "a conversation is rendered with a tokenizer"
        self.known = self.known.after(self._rendered, answer, tokenizer)

    def answered(self, messages: Sequence[Mapping[str, Any]], cell: Cell | None = None) -> Waits[Generation]:
        """Wait for the next turn, and draw it meanwhile if it is said how the cell waits."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        handle = self.ask(messages)
        answer = yield from handle.wait_ended() if cell is None else show_one(handle, cell)
        self.take(answer)
        return answer


def draws(show: bool | None) -> bool:
    """Tell whether turns are drawn: by default, in a notebook."""
    return front_end.kernel() is not None if show is None else boolean("show", show)


def draw_results(step: ToolStep) -> None:
    """Draw what came of the calls of a step; in a terminal, print it."""
    if front_end.kernel() is not None:
        front_end.CellOutput().draw(markup.bundle(results_text(step.results), results_html(step.results)))
    elif sys.stdout is not None:
        sys.stdout.write(f"{results_text(step.results)}\n")
        sys.stdout.flush()
