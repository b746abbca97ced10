"""Branches of a conversation, each with its earlier states."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from rekindle.chats.archive import user_line
from rekindle.chats.card import content
from rekindle.chats.chat import Chat
from rekindle.core.errors import InvalidRequest
from rekindle.core.words import quantity

SHORT: Final = 60
"""The maximum number of characters of a message in a line about it."""


class TalkBranch:
    """One line of a conversation.

    Attributes:
        chats: the replaced conversations, and the current one last.
    """

    def __init__(self, chat: Chat):
        self.chats = [chat]

    @property
    def now(self) -> Chat:
        """The conversation."""
        return self.chats[-1]

    def replace(self, chat: Chat) -> None:
        """Replace the conversation; `undo` brings the earlier one back."""
        self.chats.append(chat)

    def undo(self) -> None:
        """Undo the last turn, edit or replacement.

        Raises:
            InvalidRequest: there is nothing to undo.
        """
        try:
            self.now.undo()
        except InvalidRequest:
            if len(self.chats) == 1:
                raise
            self.chats.pop()


class TalkBranches:
    """All branches of a conversation, by number from 1 on.

    Attributes:
        number: the number of the current branch.
    """

    def __init__(self, chat: Chat):
        self._branches = [TalkBranch(chat)]
        self.number = 1

    @property
    def now(self) -> TalkBranch:
        """The current branch."""
        return self._branches[self.number - 1]

    def add(self) -> None:
        """Begin a branch with a copy of the conversation."""
        self._branches.append(TalkBranch(self.now.now.fork()))
        self.number = len(self._branches)

    def drop(self, number: int) -> None:
        """Drop the newest branch, and continue the one with a number."""
        self._branches.pop()
        self.number = number

    def go(self, text: str) -> None:
        """Continue the branch with a number.

        Raises:
            InvalidRequest: there is no such branch.
        """
        if not (text.isdecimal() and 1 <= int(text) <= len(self._branches)):
            raise InvalidRequest(f"no branch {text!r}; there are {len(self._branches)}, numbered from 1")
        self.number = int(text)

    def __str__(self) -> str:
        lines = []
        for number, branch in enumerate(self._branches, 1):
            mark = "*" if number == self.number else " "
            lines.append(
                f"{mark} {number}  {len(branch.now)} messages  {user_line(reversed(branch.now.messages)):.60}".rstrip()
            )
        return "\n".join(lines)


def undone_text(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about an undo, with the removed and the restored messages.

    Args:
        before: the conversation before the undo.
        after: the conversation after the undo.
    """
    (system, before), (former, after) = _split(before), _split(after)
    pairs = zip(before, after, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    removed, back = before[common:], after[common:]
    if system != former:
        removed, back = [*system, *removed], [*former, *back]
    texts = [f"undone: {messages_text(removed)}"] if removed else []
    return "; ".join([*texts, f"back again: {messages_text(back)}"] if back else texts)


def messages_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a shortened text of the first message, and the number of the others."""
    first, others = messages[0], len(messages) - 1
    text = " ".join(content(first).split())
    short = f"{text[:SHORT]}…" if len(text) > SHORT else text
    name = {"user": "", "assistant": "the answer "}.get(str(first["role"]), f"the {first['role']} message ")
    is_turn = others == 1 and (first["role"], messages[1]["role"]) == ("user", "assistant")
    rest = " and its answer" if is_turn else f" and {quantity(others, 'more message')}" if others else ""
    return f"{name}“{short}”{rest}"


def _split(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return the system message, if there is one, and the others."""
    first = 1 if messages and messages[0]["role"] == "system" else 0
    return messages[:first], messages[first:]
