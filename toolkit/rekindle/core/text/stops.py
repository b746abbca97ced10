"""Stop strings, found in text that comes in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """The stop strings of one request.

    Reading character by character, the first stop to be complete ends the text; of several that are complete at the
    same character, the longest counts. How the text is cut into pieces changes nothing.

    What may be the start of a stop is held back. A stop that a later piece completes begins in what is held, so only
    that and the new piece are searched: the cost does not grow with the text.

    A piece may be hidden, as that of a special token that is skipped: stops are found in the text with it, and it is
    left out of what is shown.

    Args:
        stops: none of them empty.
        keep: the shown text ends with all of the stop that was found, hidden or not, instead of before it.
    """

    def __init__(self, stops: Sequence[str], keep: bool) -> None:
        assert all(stops), "an empty stop would end every text"
        self._stops = sorted(stops, key=len, reverse=True)
        self._starts = frozenset(stop[0] for stop in stops)
        self._keep = keep
        self._held = ""
        self._hidden: list[tuple[int, int]] = []  # the ranges of what is held that are not to be shown
        self._ended = False

    def push(self, text: str, may_stop: bool = True, hidden: bool = False) -> tuple[str, str | None]:
        """Take the next piece of text.

        Args:
            hidden: whether this piece is not to be shown.
            may_stop: False passes over stops that become complete in this piece. One that begins in it, and is
                completed by a later piece that may stop, is still found.

        Returns:
            What may be shown now, and the stop that ended the text or None. Held back is the longest end of the text
            that a longer stop begins with. After a stop there must be no more text.
        """
        assert not self._ended, "the text has ended"
        if not self._held and self._starts.isdisjoint(text):
            return "" if hidden else text, None
        held, text = len(self._held), self._held + text
        if hidden:
            self._hidden.append((held, len(text)))
        end, found = self._first_complete(text, held) if may_stop else (0, None)
        if found is not None:
            self._ended = True
            return self._visible(text[: end - len(found)]) + (found if self._keep else ""), found
        shown = len(text) - max(_overlap(text, stop) for stop in self._stops)
        visible, self._held = self._visible(text[:shown]), text[shown:]
        self._hidden = [(max(0, begin - shown), end - shown) for begin, end in self._hidden if end > shown]
        return visible, None

    def finish(self, text: str = "", may_stop: bool = True) -> tuple[str, str | None]:
        """Take the last piece of text; the same as `push`, but nothing is held back."""
        shown, found = self.push(text, may_stop)
        self._ended = True
        return (shown, found) if found else (shown + self._visible(self._held), None)

    def _visible(self, text: str) -> str:
        """Return the start of what was held and of the newest piece, without what is hidden in it."""
        for begin, end in reversed(self._hidden):
            text = text[:begin] + text[end:]
        return text

    def _first_complete(self, text: str, held: int) -> tuple[int, str | None]:
        """Return where the first complete stop ends, and the stop. It must end after the first `held` characters."""
        end, found = len(text) + 1, None
        for stop in self._stops:  # longest first, and each must end before the one that was found
            place = text.find(stop, max(0, held - len(stop) + 1), end - 1)
            if place >= 0:
                end, found = place + len(stop), stop
        return end, found


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of the text that the stop begins with, and is longer than."""
    place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while place >= 0 and not stop.startswith(text[place:]):
        place = text.find(stop[0], place + 1)
    return len(text) - place if place >= 0 else 0
