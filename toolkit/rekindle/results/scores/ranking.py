"""Rankings of documents by relevance to a query."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rekindle import markup
from rekindle.core.request import checks
from rekindle.core.words import one_line, percent, quantity

Content: TypeAlias = str | tuple[Mapping[str, Any], ...]
"""A text, or parts of a message with images."""
Measure: TypeAlias = Literal["probability", "logit", "cosine"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Document and its relevance.

    Attributes:
        index: the index of the document in the call.
        score: the relevance, as in `Ranking`.
        document: the text, or the parts.
    """

    index: int
    score: float
    document: Content


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents and their relevance to a query. Iteration yields `Ranked` items, most relevant first.

    Attributes:
        query: the query, a text or parts of a message with images.
        documents: the documents in the order of the call.
        scores: the relevance of each document in the same order.
        prompt_tokens: the number of tokens computed or found in the cache, for all documents together.
        measure: the measure of the scores: a probability from 0 to 1, its logit without the activation, or for an
            embedding model a cosine from -1 to 1.
    """

    query: Content
    documents: tuple[Content, ...]
    scores: tuple[float, ...]
    prompt_tokens: int = 0
    measure: Measure = "probability"

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the documents, most relevant first, with ties in their original order."""
        return tuple(sorted(range(len(self.scores)), key=lambda place: -self.scores[place]))

    @property
    def best(self) -> Content:
        """Most relevant document.

        Raises:
            IndexError: there are no documents.
        """
        if not self.documents:
            raise IndexError("the ranking has no documents, so none of them is the best")
        return self.documents[self.order[0]]

    def top(self, count: int) -> list[Ranked]:
        """Return the `count` most relevant documents, or all if there are fewer.

        Raises:
            InvalidRequest: `count` is not an integer, or is negative.
        """
        checks.integer("count", count, 0, sys.maxsize)
        return [Ranked(place, self.scores[place], self.documents[place]) for place in self.order[:count]]

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.top(len(self.documents)))

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        lines = [f"{rank:>4}  {score:>8}  {document}" for rank, score, document in self._rows()]
        return "\n".join(
            [f"<rekindle.Ranking of {quantity(len(self), 'document')} for {in_words(self.query)!r:.80}>", *lines]
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        table = markup.table(self._rows(), ("rank", "relevance", "document"))
        return markup.bundle(repr(self), markup.card("Ranking", in_words(self.query), table))

    def _rows(self) -> list[tuple[str, str, str]]:
        score = percent if self.measure == "probability" else "{:.3f}".format
        ranked = enumerate(self.top(MOST_ROWS), 1)
        return [(str(rank), score(r.score), one_line(in_words(r.document), 80)) for rank, r in ranked]


def in_words(content: Content) -> str:
    """Return a text, or the texts of parts with "[image]" for each image."""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)


MOST_ROWS = 50
"""Maximum number of documents in a display."""
