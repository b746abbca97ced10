"""Documents in the order of their relevance to a query."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rekindle.core import markup
from rekindle.core.request import checks


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its relevance.

    Attributes:
        index: its place among the documents that were given.
        score: the probability that it meets the query, from 0 to 1.
    """

    index: int
    score: float
    document: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents and their relevance to a query. Iterating gives each as `Ranked`, the most relevant first.

    Attributes:
        query: what they were compared with.
        documents: as they were given.
        scores: the probability that each meets the query, in the order in which they were given.
    """

    query: str
    documents: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The places of the documents, the most relevant first; equal ones stay in their order."""
        return tuple(sorted(range(len(self.scores)), key=lambda place: -self.scores[place]))

    @property
    def best(self) -> str:
        """The most relevant document.

        Raises:
            IndexError: there are no documents.
        """
        if not self.documents:
            raise IndexError("the ranking has no documents, so none of them is the best")
        return self.documents[self.order[0]]

    def top(self, count: int) -> list[Ranked]:
        """Return so many of the most relevant documents, or all if they are fewer.

        Raises:
            InvalidRequest: `count` is negative or no integer.
        """
        checks.integer("count", count, 0, sys.maxsize)
        return [Ranked(place, self.scores[place], self.documents[place]) for place in self.order[:count]]

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.top(len(self.documents)))

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        lines = [f"{score:>8}  {place:>4}  {document}" for place, score, document in self._rows()]
        return "\n".join(
            [f"<rekindle.Ranking of {markup.quantity(len(self), 'document')} for {self.query!r:.80}>", *lines]
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        table = markup.table(self._rows(), ("place", "relevance", "document"))
        return markup.bundle(repr(self), markup.card("Ranking", self.query, table))

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(str(r.index), markup.percent(r.score), markup.one_line(r.document, 80)) for r in self.top(MOST_ROWS)]


MOST_ROWS = 50
"""How many documents are drawn."""
