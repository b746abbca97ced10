"""Loops in a growing text without equal tokens: restarts of lists, returns of sentences, changes of numbers alone."""

import re
from collections import deque
from collections.abc import Iterator
from typing import Final, Literal

RUN: Final = 20
"""Words of a run."""
EARLIER: Final = 2
"""Earlier occurrences of a run said again: a draft and the final form may be equal."""
WINDOW: Final = 128
"""Last words of a text for the verdict. The longest verse of a cumulative song is shorter."""
SHARE: Final = 0.9
"""Least share of words in runs said again; the others stand between runs."""
LETTERS: Final = 0.75
"""Least share of words with letters in the window."""
ITEMS: Final = 12
"""Least number of items said again at the restart of a list."""
SHORTEST_CYCLE: Final = 3
"""Least number of items before a restart: two rows of a knitting pattern take turns."""
VERSE_CHARACTERS: Final = 60
"""Most characters of a line of verse."""
VERSE_LINES: Final = 6
"""Lines of the verdict on verse."""

Kind = Literal["data", "verse", "prose"]

_IDEOGRAPH: Final = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD: Final = re.compile(rf"[{_IDEOGRAPH}]|[^\W\d_{_IDEOGRAPH}]+|\d+")
_NUMBERED: Final = re.compile(r"\s*(?:#+\s+)?[*_]*(\d{1,4}|[a-zA-Z])[.):][*_]*(?:\s|$)")
"""The number of an item of a list; no word."""
_BULLET: Final = re.compile(r"\s*[-*+\u2022]\s+")
_LABEL: Final = re.compile(r"\s*(?:[-*+>\u2022#]+\s+)?[*_]*[^\W\d_]+ \d+")
"""A word with a number at the start of a line, such as "Step 3"; the number is no news."""
_DATA: Final = re.compile(
    r"\s*(?:[|{}\[\]<]|```|~~~)|\s+\"|\"\w*\"\s*:|(?: {4}|\t)(?!\s*(?:[-*+]|\d+[.)])\s)"
    r"|\d+[-:/]\d|[^\s,;]+[,;\t][^\s,;]"
)
"""The start of a row of a table, of JSON, markup, a fence, indented code, a log, or values between commas."""
_FENCE: Final = re.compile(r"\s*(?:```|~~~)")
_OPENING: Final = re.compile(r"\s*[\[{](?:.*[\[{,])?\s*\Z", re.DOTALL)
"""A line with which JSON of several lines begins."""
_HEAD: Final = 24
"""Characters of a line for the verdict on its kind."""


class Runs:
    """Sequence of words, with marks on repeated runs."""

    def __init__(self) -> None:
        self._words, self._starts = list[str](), list[int]()
        self._is_said = bytearray()  # 1 for a word in a run said again
        self._ends = dict[int, list[int]]()  # by the hash of a run
        self._new, self._vocabulary = deque[int](), set[str]()

    def __len__(self) -> int:
        return len(self._words)

    def push(self, word: str, start: int, is_news: bool) -> None:
        """Add a word at an index of the text; `is_news` is whether its first occurrence is progress."""
        if word not in self._vocabulary:
            self._vocabulary.add(word)
            if is_news:
                self._new.append(len(self))
        self._words.append(word)
        self._starts.append(start)
        self._is_said.append(0)
        if len(self) < RUN:
            return
        ends = self._ends.setdefault(hash(tuple(self._words[-RUN:])), [])
        if len(ends) >= EARLIER:
            self._is_said[-RUN:] = b"\1" * RUN
        ends.append(len(self))

    def again(self, window: int) -> int | None:
        """Return the index of the text at the second begin of a loop at the end; None without a loop.

        A loop has no new word in the window, and nearly all of them in runs said again.
        """
        begin = len(self) - window
        while self._new and self._new[0] < begin:
            self._new.popleft()
        if begin < 0 or self._new or not self._is_said[-1] or sum(self._is_said[begin:]) < SHARE * window:
            return None
        first = len(self)
        while (before := self._is_said.rfind(1, max(0, first - RUN), first)) >= 0:
            first = before
        run = hash(tuple(self._words[first : first + RUN]))
        return self._starts[self._ends[run][1] - RUN]

    def has_letters(self, window: int) -> bool:
        """Return True if most words of the window have letters."""
        return sum(word != "0" for word in self._words[-window:]) >= LETTERS * window


class Items:
    """Items of one list, without their numbers."""

    def __init__(self) -> None:
        self._texts, self._starts = list[str](), list[int]()
        self._number = 0

    def push(self, line: str, start: int) -> int | None:
        """Add a line; return the index of the text at the restart of the list, or None without one."""
        numbered, bullet = _NUMBERED.match(line), _BULLET.match(line)
        number = int(numbered[1]) if numbered is not None and numbered[1].isdigit() else 0
        match = numbered or bullet
        if match is None or (number and number <= self._number):
            self._texts, self._starts, self._number = [], [], 0
        if match is None:
            return None
        self._number = number
        self._texts.append(line[match.end() :].strip().casefold())
        self._starts.append(start)
        return next((self._starts[-count] for count in self._cycles()), None)

    def _cycles(self) -> Iterator[int]:
        """Yield the number of last items that repeat a whole cycle before them."""
        texts, last = self._texts, len(self._texts) - 1
        for cycle in range(SHORTEST_CYCLE, len(texts) - ITEMS + 1):
            count = max(cycle, ITEMS)
            if texts[last] != texts[last - cycle] or last - cycle < count - 1:
                continue
            if texts[-count:] == texts[-count - cycle : -cycle] and len(set(texts[-count:])) >= SHORTEST_CYCLE:
                yield count


class Loops:
    """Watch over the loops of a growing text.

    Code, tables, JSON, logs and markup do not count, and numbers of list items neither.

    Attributes:
        kind: the kind of the text at its end.
    """

    def __init__(self) -> None:
        self.kind: Kind = "prose"
        self._line, self._line_start = "", 0
        self._characters = 0  # of the line, in words
        self._in_fence, self._depth = False, 0  # the depth of brackets in JSON
        self._lengths = deque[int](maxlen=VERSE_LINES)
        self._items, self._runs, self._same_numbers = Items(), Runs(), Runs()

    def push(self, text: str) -> int | None:
        """Add text; return the index at the second begin of a loop, or None without a loop."""
        again: int | None = None
        for part in text.splitlines(keepends=True):
            self._line += part
            has_ended = part.endswith("\n")
            if has_ended or len(self._line) > _HEAD:
                again = self._read_words(has_ended) or again
            if has_ended:
                again = self._end_line() or again
        return again

    def _read_words(self, has_ended: bool) -> int | None:
        """Read the complete words of the line; return the index at the second begin of a loop."""
        again: int | None = None
        self.kind = self._kind_now()
        if self.kind == "data":
            self._characters = len(self._line)
            return None
        numbered, label = _NUMBERED.match(self._line), _LABEL.match(self._line)
        self._characters = max(self._characters, numbered.end() if numbered is not None else 0)
        for match in _WORD.finditer(self._line, self._characters):
            if match.end() == len(self._line) and not has_ended:  # the word may go on
                break
            self._characters = match.end()
            word, start = match[0].casefold(), self._line_start + match.start()
            self._runs.push(word, start, label is None or match.end() > label.end())
            self._same_numbers.push("0" if word.isdigit() else word, start, is_news=True)
            again = self._again() or again
        return again

    def _again(self) -> int | None:
        """Return the index at the second begin of a loop, after another word."""
        again = self._runs.again(WINDOW * (2 if self.kind == "verse" else 1))
        if again is None:
            again = self._same_numbers.again(WINDOW)
            again = again if again is not None and again >= self._line_start else None  # rows of values are lines
        return again if again is not None and self._same_numbers.has_letters(WINDOW) else None

    def _kind_now(self) -> Kind:
        """Return the kind of the text at the end of the line."""
        if self._in_fence or self._depth or _DATA.match(self._line):
            return "data"
        if self._is_item() or len(self._line) > VERSE_CHARACTERS or len(self._lengths) < VERSE_LINES:
            return "prose"
        return "verse" if max(self._lengths) <= VERSE_CHARACTERS else "prose"

    def _is_item(self) -> bool:
        return _NUMBERED.match(self._line) is not None or _BULLET.match(self._line) is not None

    def _end_line(self) -> int | None:
        """Begin another line; return the index at the restart of the list."""
        again = None
        if _FENCE.match(self._line):
            self._in_fence = not self._in_fence
        elif not self._in_fence and (self._depth or _OPENING.match(self._line)):
            opens, closes = (sum(map(self._line.count, signs)) for signs in ("[{", "]}"))
            self._depth = max(0, self._depth + opens - closes)
        elif self._line.strip() and self.kind != "data":
            self._lengths.append(VERSE_CHARACTERS + 1 if self._is_item() else len(self._line))
            again = self._items.push(self._line, self._line_start)
        self._line_start += len(self._line)
        self._line, self._characters = "", 0
        return again
