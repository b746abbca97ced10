"""Delimiter tokens of a vocabulary, distinguished from equal text written with ordinary tokens.

Between the tokenizer and a response template, a sign precedes the text of each delimiter token. The sign is a
surrogate, and decoded text never contains one. So a template loaded with `Marks` matches delimiters only as tokens.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.end_tokens import END_TOKENS

SIGN: Final = "\ud800"
"""Prefix of a delimiter token's text."""
_BRACKETED: Final = re.compile(r"[<\[].+[>\]]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Marks:
    """The possible delimiter tokens of a vocabulary: added tokens in brackets.

    Attributes:
        texts: the texts of all delimiter tokens.
        special: texts of special tokens, omitted from text without special tokens.
        ends: texts of end-of-turn tokens.
    """

    texts: frozenset[str] = frozenset()
    special: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()

    def with_signs(self, text: str) -> str:
        """Return a text with a sign before each delimiter token."""
        return _any_of(self.texts).sub(lambda match: SIGN + match[0], text) if self.texts else text

    def pattern_with_signs(self, pattern: str) -> str:
        """Return a regular expression with a sign before each delimiter token, escaped or not."""
        if not self.texts:
            return pattern
        return _any_of({*self.texts, *map(re.escape, self.texts)}).sub(lambda match: SIGN + match[0], pattern)

    def visible(self, text: str) -> str:
        """Return a text without signs, and without special tokens marked by one."""
        return _remove(text, self.special)

    def without_ends(self, text: str) -> str:
        """Return a text without signs, and without end-of-turn tokens marked by one."""
        return _remove(text, self.ends)


NO_MARKS: Final = Marks()


def marks_of(tokenizer: Tokenizer) -> Marks:
    """Return the possible delimiter tokens of a vocabulary: its added tokens in brackets of any kind."""
    added = tokenizer.backend.get_added_tokens_decoder().values()
    is_special = {entry.content: entry.special for entry in added if _BRACKETED.fullmatch(entry.content)}
    special = frozenset(text for text in is_special if is_special[text])
    return Marks(frozenset(is_special), special, special & {*END_TOKENS, tokenizer.eos_token})


def _remove(text: str, marks: Collection[str]) -> str:
    if marks and SIGN in text:
        text = re.sub(f"{SIGN}(?:{_alternatives(marks)})", "", text)
    return remove_signs(text)


def remove_signs(text: str) -> str:
    """Return a text without signs."""
    return text.replace(SIGN, "")


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    return re.compile(_alternatives(texts))


def _alternatives(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
