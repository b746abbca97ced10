"""What an interrupt says of the call that it ended: how far that was, and where its text is."""

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

from rekindle import markup
from rekindle.results import Generation


def tell_generation(left: BaseException, generation: Generation) -> None:
    """Give `left`, which ends the wait for one request, what had come of it, as its attribute `generation`."""
    tokens = markup.counted(len(generation.token_ids), "token")
    _tell(left, f"interrupted after {tokens}; the text so far is in `generation` of this error", generation=generation)


def tell_finished(left: BaseException, results: Any, ended: Sequence[object]) -> None:
    """Give `left`, which ends the wait for a batch, what had ended of it, as its attribute `finished`.

    Args:
        results: as the call would have returned them, with None for each that had not ended.
        ended: the same without its shape.
    """
    done = sum(each is not None for each in ended)
    _tell(
        left,
        f"interrupted when {done} of {markup.counted(len(ended), 'request')} had ended; "
        "their answers are in `finished` of this error",
        finished=results,
    )


def _tell(left: BaseException, words: str, **attributes: object) -> None:
    if not isinstance(left, KeyboardInterrupt | CancelledError):
        return
    vars(left).update(attributes)
    if left.args:  # by which anyio knows its own cancellations, for one
        left.add_note(words)
    else:
        left.args = (words,)
