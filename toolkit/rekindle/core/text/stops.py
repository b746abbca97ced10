"""Stop strings, matched in a text stream."""

from collections.abc import Sequence


class StopMatcher:
    """Matcher of one request's stop strings.

    The stop completed first ends the text. If several stops end at the same character, the longest one wins. Piece
    boundaries do not affect the result.

    A possible start of a stop is buffered. Only the buffer and the new piece are searched, because a stop completed by
    a later piece begins in the buffer. So the cost does not grow with the text.

    A piece can be hidden, such as the text of a skipped special token. Stops are matched in the text with hidden
    pieces, and the visible text omits the hidden pieces.

    Args:
        stops: nonempty stop strings.
        keep: whether the visible text includes the whole matched stop, even its hidden parts.
    """

    def __init__(self, stops: Sequence[str], keep: bool) -> None:
        assert all(stops), "an empty stop would end every text"
        self._stops = sorted(stops, key=len, reverse=True)
        self._starts = frozenset(stop[0] for stop in stops)
        self._keep = keep
        self._buffer = ""
        self._hidden: list[tuple[int, int]] = []  # ranges of hidden text in the buffer
        self._ended = False

    def push(self, text: str, may_stop: bool = True, hidden: bool = False) -> tuple[str, str | None]:
        """Consume the next piece of text.

        Args:
            hidden: whether to omit this piece from the visible text.
            may_stop: whether stops may be completed by this piece. If False, a stop that begins here can still be
                completed by a later piece.

        Returns:
            The newly visible text, and the matched stop or None. The longest suffix of the text that can start a stop
            stays in the buffer. After a stop, push no more text.
        """
        assert not self._ended, "the text has ended"
        if not self._buffer and self._starts.isdisjoint(text):
            return "" if hidden else text, None
        buffered, text = len(self._buffer), self._buffer + text
        if hidden:
            self._hidden.append((buffered, len(text)))
        end, stop = self._first_complete(text, buffered) if may_stop else (0, None)
        if stop is not None:
            self._ended = True
            return self._visible(text[: end - len(stop)]) + (stop if self._keep else ""), stop
        visible_length = len(text) - max(_overlap(text, stop) for stop in self._stops)
        visible, self._buffer = self._visible(text[:visible_length]), text[visible_length:]
        self._hidden = [
            (max(0, begin - visible_length), end - visible_length)
            for begin, end in self._hidden
            if end > visible_length
        ]
        return visible, None

    def pass_by(self, text: str, hidden: bool = False) -> str:
        """Consume a piece without stops, and return the newly visible text: the buffer is no start of a stop now."""
        buffered, self._buffer = self._visible(self._buffer), ""
        self._hidden.clear()
        return buffered if hidden else buffered + text

    def finish(self, text: str = "", may_stop: bool = True) -> tuple[str, str | None]:
        """Consume the last piece of text. This is `push` without buffering."""
        text, stop = self.push(text, may_stop)
        self._ended = True
        return (text, stop) if stop else (text + self._visible(self._buffer), None)

    def _visible(self, text: str) -> str:
        """Return the start of the buffered text and newest piece without its hidden ranges."""
        for begin, end in reversed(self._hidden):
            text = text[:begin] + text[end:]
        return text

    def _first_complete(self, text: str, buffered: int) -> tuple[int, str | None]:
        """Return the end of the first complete stop, and the stop. The end must lie after `buffered` characters."""
        end, match = len(text) + 1, None
        for stop in self._stops:  # longest first; each must end before the best match so far
            place = text.find(stop, max(0, buffered - len(stop) + 1), end - 1)
            if place >= 0:
                end, match = place + len(stop), stop
        return end, match


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of the text that is a proper prefix of the stop."""
    place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while place >= 0 and not stop.startswith(text[place:]):
        place = text.find(stop[0], place + 1)
    return len(text) - place if place >= 0 else 0
