"""The table of several answers, as HTML and as text; the rows are also those of a table that is filled live."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from rekindle.core import markup
from rekindle.core.markup import quantity, visible
from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.generation import Generation, ids_in_words, said_html
from rekindle.results.heat_map import MOST_TOKENS, heat_map
from rekindle.results.response_card import response_html, response_line

MOST_ROWS = 50
"""How many rows are drawn."""
MOST_SHADED = 4000
"""How many tokens are drawn in heat maps, each of which is some hundred bytes of the page."""
LONGEST_PROMPT = 120
"""How many characters of a prompt are shown; the whole unfolds."""
LONGEST_ANSWER = 240
"""How many characters of an answer are shown; the whole unfolds."""
IN_TEXT = {"prompt": 30, "answer": 50}
"""How many characters of these are in the table of text."""
COLUMNS = {"": "3.6em", "prompt": "25%", "answer": "auto", "ended": "5.8em", "tokens": "4.6em", "time": "4.6em"}
"""The columns, and how wide they are in a page."""
NUMBERS = ("tokens", "time")
"""The columns that are right-aligned."""

PromptLabel = str | tuple[int, ...]
"""What was asked: a text, or token ids."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One answer in its place.

    Attributes:
        place: its index in the list, and in the lists in it.
        prompt: None if it is not known.
        outcome: a generation, an error, or None for what had not ended.
    """

    place: tuple[int, ...]
    prompt: PromptLabel | None
    outcome: object

    @property
    def name(self) -> str:
        """The place as it is written after the list's name."""
        return "".join(f"[{index}]" for index in self.place)

    def asked(self, longest: int) -> str:
        """Return the beginning of the prompt on one line, with as many characters."""
        return markup.one_line(markup.spelled(_in_words(self.prompt)), longest)

    @property
    def answer(self) -> str:
        """The answer, or the error, in words: of one that was taken apart, the content and the calls."""
        match self.outcome:
            case Generation(text=text, response=response) as generation:
                return response_line(response) or text or generation.without_words
            case None:
                return ""
        return self.error or repr(self.outcome)

    @property
    def error(self) -> str | None:
        """The error in words; None if it is none."""
        return f"{type(self.outcome).__name__}: {self.outcome}" if isinstance(self.outcome, Exception) else None

    @property
    def ending(self) -> tuple[str, str, str]:
        """Why it ended, how many tokens were generated, and in what time."""
        match self.outcome:
            case Generation(finish_reason=reason, usage=usage, timings=timings):
                return reason, f"{usage.completion_tokens:,}", markup.seconds(timings.total)
            case None:
                return "not ended", "", ""
        return "error" if isinstance(self.outcome, Exception) else "", "", ""


def total(rows: Sequence[AnswerRow]) -> str:
    """Say how many answers there are, and how many of them are none."""
    outcomes = [row.outcome for row in rows]
    failed, missing = sum(isinstance(each, Exception) for each in outcomes), outcomes.count(None)
    tokens = sum(len(each.token_ids) for each in outcomes if isinstance(each, Generation))
    said = [f"{len(rows):,}"]
    said += [quantity(failed, "error")] if failed else []
    said += [f"{missing:,} not ended"] if missing else []
    return ", ".join([*said, quantity(tokens, "token")])


def table_html(rows: Sequence[AnswerRow]) -> str:
    """Return the first rows as an HTML table, and how many others there are."""
    drawn = rows[:MOST_ROWS]
    shaded = accumulate(min(MOST_TOKENS, len(_logprobs(row))) for row in drawn)
    before = (None, *(row.prompt for row in drawn))
    lines = (
        row_html(row.name, prompt_html(row.prompt, asked), answer_html(row, heat <= MOST_SHADED), row.ending)
        for row, asked, heat in zip(drawn, before, shaded, strict=False)
    )
    more = f'<div style="opacity:0.75">and {len(rows) - MOST_ROWS:,} more</div>' if len(rows) > MOST_ROWS else ""
    return framed(chain([head_html()], lines)) + more if rows else ""


def framed(lines: Iterable[str]) -> str:
    """Return rows as a table, which scrolls where there is too little room beside it."""
    style = (
        "table-layout:fixed;border-collapse:collapse;width:100%;min-width:40em;margin:0;font-size:inherit;"
        "line-height:1.5;color:inherit"
    )
    return f'<div style="overflow-x:auto"><table style="{style}">{"".join(lines)}</table></div>'


def head_html() -> str:
    """Return the names of the columns as the first row of a table."""
    return _cells("th", tuple(f'<span style="opacity:0.75">{name}</span>' for name in COLUMNS))


def row_html(name: str, prompt: str, answer: str, ending: Sequence[str]) -> str:
    """Return a row of a table; prompt and answer are HTML."""
    return _cells("td", (f'<span style="opacity:0.75">{visible(name)}</span>', prompt, answer, *map(visible, ending)))


def answer_html(row: AnswerRow, shaded: bool) -> str:
    """Return the beginning of an answer, which unfolds to all of it, and to its heat map."""
    text, logprobs = row.answer, _logprobs(row)
    shown, heat = markup.one_line(text, LONGEST_ANSWER), logprobs if shaded else ()
    parts = response_html(row.outcome.response, heat_map(heat)) if isinstance(row.outcome, Generation) else ""
    if shown == text and not logprobs and not parts:
        return _unfolding(shown)
    unshaded = f'<div style="opacity:0.75">its heat map is shown with {row.name} alone</div>'
    return _unfolding(shown, (parts or said_html(text, "", heat)) + (unshaded if logprobs and not shaded else ""))


def prompt_html(prompt: PromptLabel | None, before: PromptLabel | None) -> str:
    """Return the beginning of a prompt, which unfolds; what was asked in the row before is not said again."""
    if prompt is not None and prompt is before:
        return '<span style="opacity:0.75">the same</span>'
    text = _in_words(prompt)
    shown = markup.one_line(text, LONGEST_PROMPT)
    return _unfolding(shown, "" if shown == text else markup.passage(text))


def table_text(rows: Sequence[AnswerRow]) -> str:
    """Return the first rows as a table of text, and how many others there are."""
    drawn = rows[:MOST_ROWS]
    cells = [tuple(COLUMNS)]
    for row, before in zip(drawn, (None, *(row.prompt for row in drawn)), strict=False):
        same = row.prompt is not None and row.prompt is before
        prompt = "the same" if same else row.asked(IN_TEXT["prompt"])
        answer = markup.one_line(markup.spelled(row.answer), IN_TEXT["answer"])
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


def _unfolding(shown: str, whole: str = "") -> str:
    """Return a text on one line that unfolds to the whole, which is HTML."""
    if not whole:
        return f'<span dir="auto">{visible(shown)}</span>'
    return f'<details><summary dir="auto" style="cursor:pointer">{visible(shown)}</summary>{whole}</details>'


def _in_words(prompt: PromptLabel | None) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return ids_in_words(prompt)


def _cells(tag: str, cells: Sequence[str]) -> str:
    style = (
        "box-sizing:border-box;vertical-align:top;white-space:normal;overflow-wrap:anywhere;"
        "padding:0.15em 0.6em 0.15em 0;border:0"
    )
    made = (
        f'<{tag} style="{style};width:{width};text-align:{"right" if name in NUMBERS else "left"}">{cell}</{tag}>'
        for (name, width), cell in zip(COLUMNS.items(), cells, strict=True)
    )
    return f'<tr style="border-top:1px solid rgba(128,128,128,0.25)">{"".join(made)}</tr>'
