"""Say by definition where stop strings end a text."""

from collections.abc import Sequence


def first_stop(pieces: Sequence[tuple[str, bool]], stops: Sequence[str]) -> tuple[int, str | None]:
    """Return the number of characters through the first complete stop, or of all, and the stop.

    Args:
        pieces: the text, each piece with whether a stop may become complete in it.
    """
    text = ""
    for piece, may_stop in pieces:
        for character in piece:
            text += character
            complete = [stop for stop in stops if text.endswith(stop)]
            if complete and may_stop:
                return len(text), max(complete, key=len)
    return len(text), None
