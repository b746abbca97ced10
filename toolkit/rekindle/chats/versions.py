"""Versions of the messages of a conversation: the answers of retries, and the texts before edits."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from rekindle.chats.states import State
from rekindle.core.errors import InvalidRequest

Message = Mapping[str, Any]


class Versions:
    """Versions of each message of a conversation behind the same messages.

    A message is compared by identity, since states share their messages. A cut answer is no version beside its whole.

    Args:
        states: the states of the conversation, the current one last.
    """

    def __init__(self, states: Sequence[State]):
        self._now = states[-1].messages
        self._states = [(state, _common(state.messages, self._now)) for state in states]
        pairs = pairwise(states)
        self._cut = {id(before.messages[-1]) for before, after in pairs if after.extends and before.messages}

    def of(self, place: int) -> tuple[int, int]:
        """Return the number of a message's version, from 1, and how many there are."""
        versions = self._at(place)
        return next(number for number, each in enumerate(versions, 1) if each is self._now[place]), len(versions)

    def neighbour(self, place: int, step: int) -> State:
        """Return the latest state with the version of a message before or after the current one.

        Args:
            place: the index of the message.
            step: -1 or 1.

        Raises:
            InvalidRequest: there is no such version.
        """
        versions, (number, count) = self._at(place), self.of(place)
        if not 1 <= number + step <= count:
            raise InvalidRequest(f"version {number} of {count} has no neighbour on that side")
        version = versions[number - 1 + step]
        return next(
            state
            for state, common in reversed(self._states)
            if common >= place < len(state.messages) and state.messages[place] is version
        )

    def _at(self, place: int) -> list[Message]:
        """Return the versions of a message, the first one first."""
        versions: dict[int, Message] = {}
        for state, common in self._states:
            if common >= place < len(state.messages):
                message = state.messages[place]
                if message is self._now[place] or id(message) not in self._cut:
                    versions.setdefault(id(message), message)
        return [*versions.values()]


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return the number of equal messages at the beginning of two conversations."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(one, other, strict=False)))
