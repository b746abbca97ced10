"""A conversation that remembers its turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from rekindle.chats.card import chat_html, chat_text
from rekindle.chats.known import NOTHING, Known
from rekindle.chats.turns import TURN_DEFAULTS, TurnOptions, Turns, draw_results
from rekindle.client.handle import Handle, Stream
from rekindle.client.requests import Requests
from rekindle.core import markup
from rekindle.core.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.waits import Waits, way
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.request import checks
from rekindle.core.request.params import check_keywords
from rekindle.core.text.chat import check_messages, copy_messages
from rekindle.notebook.live_text import Cell
from rekindle.results.generation import Generation
from rekindle.results.tool_run import ToolRun
from rekindle.tools.running import Rounds
from rekindle.tools.tool import AnyTool, Tool, tools_of

Said = str | Sequence[Mapping[str, Any]] | None
"""What is said in a turn: a text of the user's, messages, or nothing where the conversation waits for an answer."""

ROUNDS = 10
"""How often the model is asked in one turn, if it calls functions."""


@dataclass(frozen=True, slots=True)
class State:
    """A conversation at one time.

    Attributes:
        messages: oldest first.
        known: what of it has been computed.
    """

    messages: tuple[Mapping[str, Any], ...]
    known: Known = NOTHING


@dataclass(frozen=True, slots=True)
class Streamed:
    """A turn whose answer is streamed.

    Attributes:
        handle: its request.
        messages: the conversation that it answers.
        turns: what asked for it.
    """

    handle: Handle
    messages: Sequence[Mapping[str, Any]]
    turns: Turns


class Chat:
    """A conversation, from `session.chat`. Each turn costs its new tokens alone, because the earlier are cached.

    A turn that fails or is interrupted leaves the conversation as it was. One turn at a time: `fork` gives another
    conversation that begins the same.

    Args:
        requests: makes the requests of the session.
        messages: the conversation until now.
        tools: what the model may call. Functions are called by `say` and `show`, which go on until there is an answer.
        options: keywords of each turn that gives no others.
    """

    def __init__(
        self,
        requests: Requests,
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[AnyTool] | None = None,
        options: TurnOptions = {},  # noqa: B006  # it is only read
    ):
        self._requests = requests
        self._tools: tuple[Tool, ...] = () if tools is None else tools_of(tools)
        self._options = options
        self._states = [State(tuple(messages))]
        self._turning = False
        self._streamed: Streamed | None = None

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The conversation, as `generate` takes it: a list of its own, with copies of the messages."""
        return copy_messages(self._now.messages)

    @awaitable('await chat.say("...")')
    @spelled_out(TurnOptions, TURN_DEFAULTS)
    def say(self, said: Said = None, **ask: Unpack[TurnOptions]) -> Waits[Generation]:
        """Say something, and return the answer, which is part of the conversation then.

        Functions that the model calls are called, as in `session.run_tools`, until it answers; all that is in
        `messages`. The model is asked at most 10 times; then its last answer is returned, with calls that nobody
        answered. Calls of tools that were given as JSON schemas are for the caller to answer: say the messages
        of the role "tool" with their results.

        Args:
            said: what the user says, or messages; nothing where the last message waits for an answer, as after `edit`.
            **ask: sampling parameters of this turn, and variables of the chat template.

        Raises:
            InvalidRequest: nothing is said and nothing waits for an answer, or a turn is under way, or as
                `session.generate`.
            Others: as `session.generate`. The conversation is as it was then.
        """
        return self._turn(said, ask, None)

    say_sync = blocking(say)

    @awaitable('await chat.show("...")')
    @spelled_out(TurnOptions, TURN_DEFAULTS)
    def show(self, said: Said = None, **ask: Unpack[TurnOptions]) -> Waits[Generation]:
        """Say something, and show the answer in the output of the cell as it comes; in a terminal, print it.

        Pressing the button of an answer raises nothing: what had come is part of the conversation.
        """
        return (yield from self._turn(said, ask, (yield from way())))

    show_sync = blocking(show)

    @spelled_out(TurnOptions, TURN_DEFAULTS)
    def stream(self, said: Said = None, **ask: Unpack[TurnOptions]) -> Stream:
        """Say something, and return the pieces of the answer as they come: `async for` or, blocking, `for`.

        The answer is part of the conversation once it has ended; leaving the loop early cancels it, and the
        conversation is as it was. Functions are not called here: `say` does that.
        """
        messages, turns = self._begin(said, ask)
        self._streamed = Streamed(turns.ask(messages), messages, turns)
        return Stream(self._streamed.handle)

    def fork(self) -> "Chat":
        """Return another conversation that is the same until now, and goes its own way. Nothing is computed for it."""
        forked = Chat(self._requests, (), None, self._options)
        forked._tools, forked._states = self._tools, [*self._states[:-1], self._now]
        return forked

    def undo(self) -> None:
        """Take back the last turn, or the last edit.

        Raises:
            InvalidRequest: there is none, or a turn is under way.
        """
        self._check_idle()
        if len(self._states) == 1:
            raise InvalidRequest("there is no turn to take back")
        self._states.pop()

    def edit(self, index: int, text: str) -> None:
        """Change the text of a message, and drop what came after it; then go on with `say`.

        After a message of the user's, `await chat.say()` has it answered. An answer loses its reasoning and its calls.

        Args:
            index: the place of the message in `messages`; -1 is the last.
            text: its new content.

        Raises:
            InvalidRequest: there is no such message, or a turn is under way.
        """
        self._check_idle()
        state = self._now
        count = len(state.messages)
        place = checks.integer("index", index, -count, count - 1) % count if count else None
        if place is None:
            raise InvalidRequest("there is no message to edit")
        old = state.messages[place]
        # The calls and the reasoning of an answer were of another text.
        kept = {"role": "assistant"} if old["role"] == "assistant" else old
        new = {**kept, "content": checks.text("text", text, len(str(text)))}
        self._states.append(State((*state.messages[:place], new), state.known))

    def __len__(self) -> int:
        return len(self._now.messages)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        said = markup.quantity(len(self), "message")
        last = f", last {chat_text(self.messages[-1:])!r:.80}" if len(self) else ""
        return f"<rekindle.Chat of {said}{last}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        html = markup.card("Chat", markup.quantity(len(self), "message"), chat_html(self.messages))
        return markup.bundle(chat_text(self.messages) or repr(self), html)

    def _turn(self, said: Said, ask: TurnOptions, cell: Cell | None) -> Waits[Generation]:
        __tracebackhide__ = True  # a cell shows errors without such frames
        messages, turns = self._begin(said, ask)
        self._turning = True
        try:
            return self._ended((yield from self._rounds(messages, turns, cell).run()), turns)
        finally:
            self._turning = False

    def _rounds(self, messages: Sequence[Mapping[str, Any]], turns: Turns, cell: Cell | None) -> Rounds:
        """Return the rounds of a turn: one, unless functions are there that the model may call."""
        told = (lambda step: None) if cell is None else draw_results
        return Rounds(
            messages, {tool.name: tool for tool in self._tools}, ROUNDS, lambda said: turns.answered(said, cell), told
        )

    def _begin(self, said: Said, ask: TurnOptions) -> tuple[list[Mapping[str, Any]], Turns]:
        """Return the conversation with what is said, and what asks for its next turn."""
        check_keywords(ask, TURN_DEFAULTS)
        self._check_idle()
        state = self._now
        messages = [*state.messages, *_messages(said)]
        if not messages or (said is None and messages[-1].get("role") == "assistant"):
            raise InvalidRequest("nothing waits for an answer; say something: chat.say('...')")
        options: Any = {**self._options, **ask}
        return messages, Turns(self._requests, [tool.schema for tool in self._tools], options, state.known)

    def _ended(self, run: ToolRun, turns: Turns) -> Generation:
        self._states.append(State(tuple(run.messages), turns.known))
        return run.answer

    @property
    def _now(self) -> State:
        """The conversation, with the answer of a stream that has ended."""
        self._settle()
        return self._states[-1]

    def _settle(self) -> None:
        """Take in the answer of a stream that has ended; that of one that was left is no part of the conversation."""
        streamed = self._streamed
        if streamed is not None and (streamed.handle.done or streamed.handle.record.cancelling):
            self._streamed = None
            if (answer := streamed.handle.generation) is not None and not streamed.handle.record.cancelling:
                streamed.turns.take(answer)
                self._states.append(State((*streamed.messages, answer.message), streamed.turns.known))

    def _check_idle(self) -> None:
        self._settle()
        if self._turning or self._streamed is not None:
            raise InvalidRequest("a turn of this conversation is under way; wait for it, or fork() the conversation")


def _messages(said: Said) -> list[Mapping[str, Any]]:
    """Return what is said as messages.

    Raises:
        InvalidRequest: it is neither a text nor messages.
    """
    if said is None:
        return []
    if isinstance(said, str):
        if not said:
            raise InvalidRequest("what is said is empty; it needs at least one character")
        return [{"role": "user", "content": said}]
    if not checks.is_sequence(said):
        hint = "; put it in a list" if isinstance(said, Mapping) else ""
        raise InvalidRequest(
            f"what is said must be a str or a list of {{role, content}} mappings, got {checks.preview(said)}{hint}"
        )
    check_messages(said)
    return copy_messages(said)
