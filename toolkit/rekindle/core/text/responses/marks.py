"""Marks that a vocabulary has as tokens, told from the same letters that a model writes as text.

Between a tokenizer and a response template, a sign stands before the text of each such token: a surrogate, which no
decoded text has. So a template that was made for a vocabulary finds its marks where their tokens are, and there alone.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from rekindle.core.text.ends import END_TOKENS
from rekindle.core.text.tokenizer import Tokenizer

SIGN: Final = "\ud800"
"""What stands before the text of a token that is a mark."""
_BRACKETED: Final = re.compile(r"[<\[].*\w.*[>\]]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens of a vocabulary that may be marks: those that are found in a text before it is cut.

    Attributes:
        texts: of all of them.
        special: of those that a text without special tokens leaves out.
        ends: of those that end a turn.
    """

    texts: frozenset[str] = frozenset()
    special: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()

    def signed(self, text: str) -> str:
        """Return a text with a sign before each mark."""
        return _any_of(self.texts).sub(lambda found: SIGN + found[0], text) if self.texts else text

    def signed_pattern(self, pattern: str) -> str:
        """Return a regular expression with a sign before each mark, which it may have escaped."""
        if not self.texts:
            return pattern
        return _any_of({*self.texts, *map(re.escape, self.texts)}).sub(lambda found: SIGN + found[0], pattern)

    def shown(self, text: str) -> str:
        """Return a text without signs, and without the special tokens that stand behind one."""
        return _without(text, self.special)

    def without_ends(self, text: str) -> str:
        """Return a text without signs, and without the tokens that end a turn."""
        return _without(text, self.ends)


NO_MARKS: Final = Marks()


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Return the tokens of a vocabulary that may be marks: those that were added, and are in brackets of some kind."""
    added = tokenizer.backend.get_added_tokens_decoder().values()
    found = {entry.content: entry.special for entry in added if _BRACKETED.fullmatch(entry.content)}
    special = frozenset(text for text, special in found.items() if special)
    return Marks(frozenset(found), special, special & {*END_TOKENS, tokenizer.eos_token})


def _without(text: str, marks: Collection[str]) -> str:
    if marks and SIGN in text:
        text = re.sub(f"{SIGN}(?:{_alternatives(marks)})", "", text)
    return unsigned(text)


def unsigned(text: str) -> str:
    """Return a text without signs."""
    return text.replace(SIGN, "")


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    return re.compile(_alternatives(texts))


def _alternatives(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
