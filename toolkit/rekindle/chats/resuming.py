"""The offer of earlier conversations above the box of a widget, and the file of its own."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rekindle import markup
from rekindle.chats.archive import ArchivedChat, Recording, read
from rekindle.chats.turn_tokens import TurnTokens
from rekindle.core.errors import RekindleError
from rekindle.core.words import ago, one_line, quantity
from rekindle.notebook.face import button

OFFERED: Final = 5
"""Most conversations in an offer."""
LONGEST: Final = 60
"""Most characters of a title."""
_PRESS: Final = "resume-"


class Resumable(Protocol):
    """Interface of a `Chat` for the offer of earlier ones."""

    @property
    def messages(self) -> list[Mapping[str, Any]]: ...
    @property
    def _turn_tokens(self) -> TurnTokens: ...
    def _resume(self, messages: Sequence[Mapping[str, Any]], turn_tokens: TurnTokens) -> None: ...


class Resuming:
    """Earlier conversations of a model for one without a turn, and the file of this one.

    Args:
        chat: the conversation.
        recording: the file of the conversation, beside the earlier ones; None if none are kept.
    """

    def __init__(self, chat: Resumable, recording: Recording | None):
        self._chat, self._recording = chat, recording
        self._offers: list[ArchivedChat] = []
        self._lines: list[str] = []

    def look(self) -> None:
        """Read the offer anew, for a conversation without a turn."""
        self._offers, self._lines = [], []
        if self._recording is not None and not self._has_turns:
            self._offers, self._lines = self._recording.archive.latest(OFFERED)

    @property
    def html(self) -> str:
        """The offer as buttons, and lines about files, as HTML."""
        offers = [] if self._has_turns else self._offers
        buttons = "".join(_button(place, offer) for place, offer in enumerate(offers))
        note = markup.note("Earlier conversations with this model; a click continues one:") if offers else ""
        lines = "".join(map(markup.note, self._lines))
        return f"{note}<div>{buttons}</div>{lines}" if note or lines else ""

    def press(self, name: str) -> bool:
        """Resume the conversation of a button; return False for a button of others, or if it cannot be resumed."""
        place = name.removeprefix(_PRESS)
        if place == name or not place.isdecimal() or int(place) >= len(self._offers) or self._has_turns:
            return False
        assert self._recording is not None, "there are offers"
        try:
            offer = read(self._offers[int(place)].path)  # another kernel may have continued it
            self._chat._resume(offer.messages, self._recording.tokens_of(offer))
        except (OSError, RekindleError) as error:
            self._lines = [f"this conversation cannot be continued: {error}"]
            return False
        self._recording.resume(offer)
        self._lines = []
        return True

    def keep(self) -> None:
        """Write the conversation after a turn; a line tells why it was not possible."""
        if self._recording is not None:
            why = self._recording.write(self._chat.messages, self._chat._turn_tokens)
            self._lines = [why] if why else []

    @property
    def _has_turns(self) -> bool:
        return any(message.get("role") != "system" for message in self._chat.messages)


def is_offer(name: str) -> bool:
    """Return True for the name of a button of an offer."""
    return name.startswith(_PRESS)


def _button(place: int, offer: ArchivedChat) -> str:
    size = quantity(len(offer.messages), "message")
    facts = f"{size}{markup.BETWEEN}{ago(time.time() - offer.time)}"
    title = one_line(offer.title, LONGEST) or "without words"
    return button(f"{_PRESS}{place}", f"“{title}”{markup.BETWEEN}{facts}")
