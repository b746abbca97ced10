"""Stop strings, found in text that comes in pieces.

All stop strings of a request make one automaton (Aho and Corasick's): a state is the longest end of the text so far
that begins some stop. One step a character, however many stops there are and however long the text has grown.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


class StopMatcher:
    """The stop strings of one request.

    Reading character by character, the first stop to be complete ends the text; of several that are complete at the
    same character, the longest counts. How the text is cut into pieces changes nothing.

    Args:
        stops: none of them empty.
        keep: the shown text ends right after the stop that was found, instead of before it.
    """

    def __init__(self, stops: Sequence[str], keep: bool) -> None:
        self._automaton = _Automaton()
        for stop in stops:
            self._automaton.add(stop)
        self._automaton.link()
        self._keep = keep
        self._state = 0
        self._held = ""
        self._ended = False

    def push(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """Take the next piece of text.

        Args:
            may_stop: False passes over stops that become complete in this piece. One that begins in it, and is
                completed by a later piece that may stop, is still found.

        Returns:
            (what may be shown now, the stop that ended the text or None). Held back is the longest end of the text
            that some stop begins with, and is longer than. After a stop there must be no more text.
        """
        assert not self._ended, "the text has ended"
        found, taken = self._scan(text, may_stop)
        text = self._held + text[:taken]
        if found is None:
            shown = len(text) - self._automaton.held[self._state]
        else:
            self._ended = True
            shown = len(text) if self._keep else len(text) - len(found)
        self._held = text[shown:]
        return text[:shown], found

    def finish(self, text: str = "", may_stop: bool = True) -> tuple[str, str | None]:
        """Take the last piece of text; the same as `push`, but nothing is held back."""
        shown, found = self.push(text, may_stop)
        self._ended = True
        return (shown, found) if found else (shown + self._held, None)

    def _scan(self, text: str, may_stop: bool) -> tuple[str | None, int]:
        """The stop that is first complete, and how much of the text goes to its end."""
        steps, falls, found = self._automaton.steps, self._automaton.falls, self._automaton.found
        if not steps[0]:
            return None, len(text)
        state = self._state
        for place, character in enumerate(text):
            while (step := steps[state].get(character)) is None and state:
                state = falls[state]
            state = step or 0
            if may_stop and found[state] is not None:
                return found[state], place + 1
        self._state = state
        return None, len(text)


@dataclass(slots=True)
class _Automaton:
    """A tree of all stops, one state a prefix; state 0 is the empty one.

    Attributes:
        steps: by state, the states that are one character longer.
        falls: by state, that of its longest proper end which begins a stop too.
        found: by state, the longest stop that it ends with, or None.
        held: by state, the length of its longest end that a longer stop begins with.
    """

    steps: list[dict[str, int]] = field(default_factory=lambda: [{}])
    falls: list[int] = field(default_factory=lambda: [0])
    found: list[str | None] = field(default_factory=lambda: [None])
    held: list[int] = field(default_factory=lambda: [0])

    def add(self, stop: str) -> None:
        assert stop, "an empty stop would end every text"
        state = 0
        for length, character in enumerate(stop, 1):
            state = self.steps[state].setdefault(character, len(self.steps))
            if state == len(self.steps):
                self.steps.append({})
                self.falls.append(0)
                self.found.append(None)
                self.held.append(length)
        self.found[state] = stop

    def link(self) -> None:
        """Fill in the falls, and what follows from them; shorter states come before longer ones."""
        waiting = deque(self.steps[0].values())
        while waiting:
            state = waiting.popleft()
            fall = self.falls[state]
            self.found[state] = self.found[state] or self.found[fall]
            if not self.steps[state]:  # a whole stop, and the start of no longer one
                self.held[state] = self.held[fall]
            for character, longer in self.steps[state].items():
                self.falls[longer] = self._after(fall, character)
                waiting.append(longer)

    def _after(self, state: int, character: str) -> int:
        while character not in self.steps[state] and state:
            state = self.falls[state]
        return self.steps[state].get(character, 0)
