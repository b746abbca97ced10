"""Table of a batch's answers, as HTML and as text. The live table of a running batch uses the same rows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from rekindle import markup
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import one_line, quantity, seconds, spelled
from rekindle.markup import visible
from rekindle.results.generation import Generation, ids_in_words, text_html
from rekindle.results.heat_map import MOST_TOKENS, heat_map
from rekindle.results.response_card import images_html, response_html, response_line

MOST_ROWS = 50
"""Maximum number of rows."""
MOST_SHADED = 4000
"""Maximum number of tokens in all heat maps; each token takes about a hundred bytes of the page."""
LONGEST_PROMPT = 120
"""Maximum number of characters of a folded prompt."""
MOST_IMAGES = 4
"""Maximum number of thumbnails of a prompt."""
SIDE = 48
"""Maximum pixels of a thumbnail's side in the page."""
LONGEST_ANSWER = 240
"""Maximum number of characters of a folded answer."""
IN_TEXT = {"prompt": 30, "answer": 50}
"""Maximum number of characters of a cell of the plain text table, by column."""
COLUMNS = {"": "2.6em", "prompt": "24%", "answer": "auto", "ended": "4.6em", "tokens": "3.6em", "time": "4.2em"}
"""CSS width of each column, by name."""
MIN_WIDTH = "36em"
"""CSS width with room for words in the columns of prompts and answers."""
NUMBERS = ("tokens", "time")
"""Right-aligned columns."""

_BLANK = re.compile(r"\n\s*\n")

PromptLabel = str | tuple[int, ...]
"""Display of a prompt: a text, or token ids."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """Row of the table.

    Attributes:
        place: the index of the answer in the list, followed by its index in a nested list.
        prompt: the prompt; None if unknown.
        outcome: a generation, an error, or None for an unfinished request.
    """

    place: tuple[int, ...]
    prompt: PromptLabel | None
    outcome: object

    @property
    def name(self) -> str:
        """Place as subscripts, such as "[3][0]"."""
        return "".join(f"[{index}]" for index in self.place)

    def prompt_line(self, longest: int) -> str:
        """Return the prompt on one line, cut to `longest` characters, and the number of its images."""
        images = f" ({quantity(len(self.images), 'image')})" if self.images else ""
        return preview(spelled(_in_words(self.prompt)), longest - len(images)) + images

    @property
    def images(self) -> Sequence[Any]:
        """Images of the prompt of a generation."""
        return self.outcome.images if isinstance(self.outcome, Generation) else ()

    @property
    def answer(self) -> str:
        """Answer as text (for a parsed response, the content and the tool calls), or the error."""
        match self.outcome:
            case Generation(text=text, response=response) as generation:
                return response_line(response) or text or generation.without_words
            case None:
                return ""
        return self.error or repr(self.outcome)

    @property
    def error(self) -> str | None:
        """Type and message of the error; None without an error."""
        return f"{type(self.outcome).__name__}: {self.outcome}" if isinstance(self.outcome, Exception) else None

    @property
    def ending(self) -> tuple[str, str, str]:
        """Cells with the finish reason, the number of generated tokens and the time."""
        match self.outcome:
            case Generation(finish_reason=reason, usage=usage, timings=timings):
                return reason, f"{usage.completion_tokens:,}", seconds(timings.total)
            case None:
                return "not ended", "", ""
        return "error" if isinstance(self.outcome, Exception) else "", "", ""


_NOTHING = AnswerRow((), None, None)


def total(rows: Sequence[AnswerRow]) -> str:
    """Return the numbers of answers, errors, unfinished requests and tokens, as text."""
    outcomes = [row.outcome for row in rows]
    failed, missing = sum(isinstance(each, Exception) for each in outcomes), outcomes.count(None)
    tokens = sum(len(each.token_ids) for each in outcomes if isinstance(each, Generation))
    counts = [f"{len(rows):,}"]
    counts += [quantity(failed, "error")] if failed else []
    counts += [f"{missing:,} not ended"] if missing else []
    return ", ".join([*counts, quantity(tokens, "token")])


def table_html(rows: Sequence[AnswerRow]) -> str:
    """Return the first rows as an HTML table, and the number of remaining rows below it."""
    head = rows[:MOST_ROWS]
    shaded = accumulate(min(MOST_TOKENS, len(_logprobs(row))) for row in head)
    before = (_NOTHING, *head)
    lines = (
        row_html(row.name, _whole_prompt_html(row, previous), answer_html(row, heat <= MOST_SHADED), row.ending)
        for row, previous, heat in zip(head, before, shaded, strict=False)
    )
    more = markup.note(f"and {len(rows) - MOST_ROWS:,} more") if len(rows) > MOST_ROWS else ""
    return whole_table(chain([head_html()], lines)) + more if rows else ""


def whole_table(lines: Iterable[str]) -> str:
    """Return an HTML table of rows with all columns. A narrow page scrolls it, so that words stay whole."""
    style = f"table-layout:fixed;border-collapse:collapse;width:100%;min-width:{MIN_WIDTH};margin:0;font-size:inherit"
    table = f'<table style="{style};line-height:1.5;color:inherit">{"".join(lines)}</table>'
    return f'<div role="group" aria-label="answers" tabindex="0" style="overflow-x:auto">{table}</div>'


def head_html() -> str:
    """Return the header row of the table."""
    return _cells("th", tuple(f'<span style="{markup.PALE}">{name}</span>' for name in COLUMNS))


def row_html(name: str, prompt: str, answer: str, ending: Sequence[str]) -> str:
    """Return a row of the table; `prompt` and `answer` are HTML."""
    return _cells("td", (f'<span style="{markup.PALE}">{visible(name)}</span>', prompt, answer, *map(_small, ending)))


def answer_html(row: AnswerRow, shaded: bool) -> str:
    """Return an answer on one line; it unfolds to the whole answer and its heat map."""
    text, logprobs = row.answer, _logprobs(row)
    line, heat = preview(text, LONGEST_ANSWER), logprobs if shaded else ()
    parts = response_html(row.outcome.response, heat_map(heat)) if isinstance(row.outcome, Generation) else ""
    if line == text and not logprobs and not parts:
        return _unfolding(line)
    unshaded = markup.note(f"its heat map is shown with {row.name} alone")
    return _unfolding(line, (parts or text_html(text, "", heat)) + (unshaded if logprobs and not shaded else ""))


def prompt_html(prompt: PromptLabel | None, before: PromptLabel | None) -> str:
    """Return a prompt on one line, unfolding to the whole prompt; "the same" if the row before has the same prompt."""
    if prompt is not None and prompt is before:
        return f'<span style="{markup.PALE}">the same</span>'
    text = _in_words(prompt)
    line = preview(text, LONGEST_PROMPT)
    return _unfolding(line, "" if line == text else markup.passage(text))


def _whole_prompt_html(row: AnswerRow, before: AnswerRow) -> str:
    """Return the prompt of a row and thumbnails of its images, unless the row before has the same."""
    if row.images == before.images:
        return prompt_html(row.prompt, before.prompt)
    return prompt_html(row.prompt, None) + images_html(row.images, MOST_IMAGES, SIDE)


def table_text(rows: Sequence[AnswerRow]) -> str:
    """Return the first rows as a plain text table, and the number of remaining rows below it."""
    head = rows[:MOST_ROWS]
    cells = [tuple(COLUMNS)]
    for row, before in zip(head, (_NOTHING, *head), strict=False):
        same = row.prompt is not None and row.prompt is before.prompt and row.images == before.images
        prompt = "the same" if same else row.prompt_line(IN_TEXT["prompt"])
        answer = preview(spelled(row.answer), IN_TEXT["answer"])
        cells.append((row.name, prompt, answer, *row.ending))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = [str.rjust if name in NUMBERS else str.ljust for name in COLUMNS]
    lines = [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, line, widths, strict=True)).rstrip()
        for line in cells
    ]
    more = [f"and {len(rows) - MOST_ROWS:,} more"] if len(rows) > MOST_ROWS else []
    return "\n".join([f"Answers: {total(rows)}", *(lines if rows else []), *more])


def _logprobs(row: AnswerRow) -> tuple[TokenLogprob, ...]:
    return (row.outcome.logprobs or ()) if isinstance(row.outcome, Generation) else ()


def preview(text: str, longest: int) -> str:
    """Return the beginning of a text on one line, with one mark for several ends of lines."""
    return one_line(_BLANK.sub("\n", text.strip("\n")), longest)


def _unfolding(line: str, whole: str = "") -> str:
    """Return a line that unfolds to `whole`, an HTML text."""
    if not whole:
        return f'<span dir="auto">{visible(line)}</span>'
    return f'<details><summary dir="auto" style="cursor:pointer">{visible(line)}</summary>{whole}</details>'


def _in_words(prompt: PromptLabel | None) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return ids_in_words(prompt)


def _small(text: str) -> str:
    return f'<span style="font-size:0.9em">{visible(text)}</span>'


def _cells(tag: str, cells: Sequence[str]) -> str:
    style = (
        "box-sizing:border-box;vertical-align:top;white-space:normal;overflow-wrap:anywhere;"
        "padding:0.15em 0.6em 0.15em 0;border:0;font-weight:normal"
    )
    elements = (
        f'<{tag if name else "td"} style="{style};width:{width};text-align:{"right" if name in NUMBERS else "left"}">'
        f"{cell}</{tag if name else 'td'}>"
        for (name, width), cell in zip(COLUMNS.items(), cells, strict=True)
    )
    return f'<tr style="{markup.row_style(tag)}">{"".join(elements)}</tr>'
