"""Words in the places of the masks of a text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rekindle import markup
from rekindle.core.words import one_line, percent

LONGEST: Final = 80
"""Most characters of a text in a card."""


@dataclass(frozen=True, slots=True)
class MaskedWord:
    """A word for a mask.

    Attributes:
        token_id: the token.
        word: its text.
        probability: its probability among all tokens.
        text: the whole text with the word in place of the mask, as the tokenizer decodes it.
    """

    token_id: int
    word: str
    probability: float
    text: str


@dataclass(frozen=True, slots=True)
class MaskedWords:
    """The likeliest words for the masks of a text. Iteration yields each `MaskedWord` of the first mask.

    Attributes:
        text: the text with its masks.
        masks: the words for each mask, the likeliest first.
    """

    text: str
    masks: tuple[tuple[MaskedWord, ...], ...]

    @property
    def best(self) -> str:
        """The likeliest word for the first mask."""
        return self.masks[0][0].word

    def __len__(self) -> int:
        return len(self.masks[0])

    def __iter__(self) -> Iterator[MaskedWord]:
        return iter(self.masks[0])

    def __getitem__(self, index: int) -> MaskedWord:
        return self.masks[0][index]

    def __str__(self) -> str:
        return self.best

    def __repr__(self) -> str:
        parts = "; ".join(", ".join(f"{word} {share}" for word, share in _rows(words)) for words in self.masks)
        return f"<rekindle.MaskedWords: {parts}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        tables = "".join(markup.table(_rows(words)) for words in self.masks)
        return markup.bundle(repr(self), markup.card("Masked words", one_line(self.text, LONGEST), tables))


def _rows(words: tuple[MaskedWord, ...]) -> list[tuple[str, str]]:
    return [(one_line(each.word, LONGEST), percent(each.probability)) for each in words]
