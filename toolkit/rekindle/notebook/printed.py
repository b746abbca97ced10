"""A request printed as its text comes, where there is no notebook."""

import sys
from typing import Protocol

from rekindle import markup
from rekindle.concurrency.feed import Feed
from rekindle.results import Piece


class Request(Protocol):
    """What is printed: a `rekindle.Handle`."""

    @property
    def pieces(self) -> Feed[Piece]:
        """What it said so far."""

    def shown(self) -> markup.Bundle:
        """What a cell shows of it: as plain text, what it said, and then how it is."""


class Printed:
    """Standard output: every piece as it comes, and at the end how it ended, on a line of its own."""

    seconds = 0.0

    def __init__(self, request: Request):
        self._request = request
        self._seen = self._length = 0

    def draw(self) -> None:
        """Print what is new."""
        new = self._request.pieces.items[self._seen :]
        self._seen += len(new)
        self._print("".join(piece.text for piece in new))

    def close(self) -> None:
        """Print what is not printed yet of the whole."""
        whole = self._request.shown()["text/plain"]
        self._print(f"{whole[self._length :]}\n")

    def _print(self, text: str) -> None:
        self._length += len(text)
        if text and sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
