"""The window of a conversation: the part of it for the model, once the whole is longer than the context."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, takewhile
from typing import Any, Final, Literal

from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.request import checks
from rekindle.core.words import quantity
from rekindle.formats.rendering.chat import check_messages, copy_messages
from rekindle.formats.rendering.system_messages import SYSTEM_ROLES
from rekindle.results.generation import Generation
from rekindle.tools.calling import FunctionCall

Messages = Sequence[Mapping[str, Any]]
Keep = Callable[[list[Mapping[str, Any]], int], Messages | Awaitable[Messages]]
"""Returns messages in place of others, in at most a number of tokens; it may be async."""
WhenFull = Literal["trim", "stop"] | Keep
"""Behaviour of a chat with a full context: see `session.chat`."""
Count = Callable[[Messages], int]
"""Returns a number of tokens of messages."""

FULL: Final = (
    "The conversation has filled the context, so its oldest turns are no longer sent to the model; they stay in "
    'chat.messages. session.chat(when_full="stop") raises an error instead.'
)
"""The note about the first turns outside of the window, for code."""
REMEDY: Final = (
    "chat.undo() takes the last turn back, session.chat() begins a new conversation, and "
    'session.chat(when_full="trim") goes on without the oldest turns'
)
"""The ways out for code, with `when_full="stop"`."""
_SHARE: Final = 4
"""The context divided by this is the most room to leave for an answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a conversation for the model.

    Attributes:
        messages: the messages in place of the first `until` of the conversation.
        until: the number of replaced messages.
        start: the index of the first message in the window with all later ones. Earlier ones are in it only as system
            messages, or in the words of a function.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    until: int = 0
    start: int = 0

    def of(self, messages: Messages) -> list[Mapping[str, Any]]:
        """Return the part of a conversation for the model, which has grown since."""
        return [*self.messages, *messages[self.until :]]


WHOLE: Final = Window()
"""The window of a conversation with room for all of it."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words about a full context, for the place of a chat: a cell, its widget or a terminal.

    Attributes:
        tell: tells of the first turns outside of the window.
        remedy: the ways out for "stop", as the end of an error's message.
    """

    tell: Callable[[], None]
    remedy: str


@dataclass(frozen=True, slots=True)
class Fit:
    """Rule for a turn without room.

    Attributes:
        when_full: as in `session.chat`.
        window: the window before the turn.
        words: the words about it.
    """

    when_full: WhenFull
    window: Window
    words: Words


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Sizes for the window of one turn, in tokens.

    Attributes:
        longest: the most tokens of a prompt.
        budget: the most tokens of a prompt with room for its answer.
        count: counts the tokens of a prompt, with the tools and all else of the turn.
        weigh: counts the tokens of some messages alone.
    """

    longest: int
    budget: int
    count: Count
    weigh: Count

    @classmethod
    def of(cls, context: int, max_tokens: int | None, count: Count, weigh: Count) -> "WindowSizes":
        """Return the sizes for answers of at most `max_tokens` in a context."""
        room = context // _SHARE if max_tokens is None else min(max_tokens, context // _SHARE)
        longest = context if max_tokens == 0 else context - 1
        return cls(longest, min(longest, context - room), count, weigh)


def cut_text(answer: Generation, *, stops: bool) -> str | None:
    """Return the reason for an answer of a widget cut by a limit, with the way on; None for another end.

    Args:
        stops: whether the chat stops with a full context.
    """
    if answer.full_context is not None:
        way = REMEDY if stops else "Continue, or the next turn, goes on without the oldest turns"
        return f"the context of {quantity(answer.full_context, 'token')} is full: {way}"
    return answer.cut_by and f"{answer.cut_by}, and Continue goes on"


def check_when_full(value: Any) -> None:
    """Raise InvalidRequest unless a value is a `WhenFull`."""
    if value not in ("trim", "stop") and not callable(value):
        raise InvalidRequest.of(
            "when_full",
            'when_full must be "trim", "stop" or a function of messages and a number of tokens, '
            f"got {checks.preview(value)}",
        )


def fitting(messages: Messages, fit: Fit, sizes: WindowSizes) -> Waits[Window]:
    """Return the window for the next prompt of a conversation: the former one, as long as there is room.

    Raises:
        PromptTooLong: there is no room, and `when_full` is "stop".
        InvalidRequest: the messages of a function are malformed or too long.
        Others: the error of the function.
    """
    window, when_full = fit.window, fit.when_full
    current = window.of(messages)
    tokens = sizes.count(current)
    if when_full == "stop":
        if tokens > sizes.longest and len(_starts(messages)) > 1:
            raise _too_long(
                f"the conversation has filled the context: its prompt has at least {tokens} tokens, and at most "
                f"{sizes.longest} fit with one token of output. {fit.words.remedy}",
                tokens,
                sizes.longest,
            )
        return window
    if tokens <= sizes.budget:
        return window
    if when_full != "trim":
        return (yield from _replaced(when_full, current, len(messages), sizes))
    start = _start(messages, sizes)
    if start == window.start:
        return window
    fit.words.tell()
    return Window(tuple(_from(messages, start)), len(messages), start)


def _start(messages: Messages, sizes: WindowSizes) -> int:
    """Return the index of the first message in a trimmed conversation, system messages aside.

    It moves in steps of tokens, counted from the first message on. So it stays for many turns, the prefix cache serves
    their prompts, and a chat begun anew from the same messages has the same start.
    """
    starts = _starts(messages)
    last = messages[starts[-1] :]
    room = sizes.budget - sizes.count(_from(messages, starts[-1])) + sizes.weigh(last)
    step = _rounded(max(1, room // 2))
    ends = accumulate((sizes.weigh(messages[first:end]) for first, end in pairwise(starts)), initial=0)
    crossings = (end // step > before // step for before, end in pairwise(ends))
    places = [0, *(start for start, crosses in zip(starts[1:], crossings, strict=True) if crosses)]
    places += [] if places[-1] == starts[-1] else [starts[-1]]
    first = bisect_left(places, True, key=lambda place: sizes.count(_from(messages, place)) <= sizes.budget)
    return places[min(first, len(places) - 1)]


def _rounded(number: int) -> int:
    """Return a number rounded down to three binary digits, so that some tokens more or less change nothing."""
    digits = max(0, number.bit_length() - 3)
    return number >> digits << digits


def _starts(messages: Messages) -> list[int]:
    """Return the index of the first message of each turn: 0, and the places of the second and later user messages."""
    users = [place for place, message in enumerate(messages) if message.get("role") == "user"]
    return [0, *users[1:]]


def _from(messages: Messages, start: int) -> list[Mapping[str, Any]]:
    """Return the messages from a start on, after all system messages before."""
    return [*(each for each in messages[:start] if each.get("role") in SYSTEM_ROLES), *messages[start:]]


def _replaced(keep: Keep, current: Messages, until: int, sizes: WindowSizes) -> Waits[Window]:
    """Return the window with the messages of a function.

    Args:
        current: the messages for the function.
        until: the number of messages of the conversation.
    """
    copies = copy_messages(current)
    outcome: Any = yield FunctionCall(partial(keep, list(copies), sizes.budget), {})
    if isinstance(outcome, Exception):
        raise outcome
    check_messages(outcome)
    pairs = zip(reversed(copies), reversed(outcome), strict=False)
    unchanged = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
    window = Window(tuple(copy_messages(outcome)), until, until - unchanged)
    if (tokens := sizes.count(window.messages)) > sizes.longest:
        raise _too_long(
            f"the messages of the function of when_full have at least {tokens} tokens: at most {sizes.longest} fit "
            f"with one token of output, and the function was given {sizes.budget} as the most",
            tokens,
            sizes.longest,
        )
    return window


def _too_long(text: str, tokens: int, longest: int) -> PromptTooLong:
    error = PromptTooLong.of("prompt", text)
    error.tokens, error.most = tokens, longest
    return error
