"""Explorer of a generation by its tokens: a click on a token shows alternatives, and an alternative starts a branch."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rekindle import markup
from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.core.concurrency.waits import blocked
from rekindle.core.errors import InvalidRequest, RekindleError
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.words import percent
from rekindle.notebook import front_end, marimo_cell
from rekindle.notebook.face import Face, button
from rekindle.notebook.live_text import draw_record
from rekindle.results.generation import Generation
from rekindle.results.heat_map import DEEPEST, MOST_TOKENS, by_character, group_text, probability, shade, title

REDRAW_SECONDS = 0.25
"""The minimum time between two updates of a running branch."""
HINT = "choose a token to see others that were likely in its place"
STILL = "a picture: install anywidget to choose tokens here"
"""The note below a generation in a notebook without anywidget."""
PLAIN = "border:0;border-radius:3px;padding:0 1px;margin:0;white-space:pre-wrap"
"""The style of a token's button, which is a part of the text."""


class Explorer:
    """A generation in the output of a cell with a button for each token, and its branches below.

    Without widgets, the cell displays the generation itself.

    Attributes:
        generation: the generation, with `logprobs`.
        branches: the explorers of finished branches, in order of their end.

    Raises:
        InvalidRequest: the generation has no alternative tokens.
    """

    def __init__(self, generation: Generation):
        if not isinstance(generation, Generation):
            got = type(generation).__name__
            raise InvalidRequest(f"explore takes the result of `await session.generate(prompt, logprobs=5)`, got {got}")
        if not any(token.top for token in generation.logprobs or ()):
            raise InvalidRequest(
                "the generation has no alternative tokens; generate with logprobs=5, for 5 alternatives each"
            )
        self.generation = generation
        self.branches: list[Explorer] = []
        self._below: list[str | Explorer] = []  # HTML of running and failed branches, and explorers of finished ones
        self._place: int | None = None
        self._lock = threading.RLock()  # each branch is drawn on a separate thread
        self._face: Face | None = None
        self._redraw: Callable[[], None] = self._draw

    def close(self) -> None:
        """Close the widget of this explorer permanently."""
        if self._face is not None:
            self._face.close()
            self._face = None

    def __repr__(self) -> str:
        return f"<rekindle.Explorer of {self.generation!r}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        bundle = self.generation._repr_mimebundle_()
        if front_end.in_notebook():
            bundle["text/html"] += markup.note(STILL)
        return bundle

    def _display_(self) -> object:
        """Show the buttons in a cell of marimo: its display protocol."""
        self._face = None  # marimo has closed it, if the cell that showed it has run again
        try:
            return self.face.widget
        except ImportError:
            return marimo_cell.html(self._repr_mimebundle_()["text/html"])

    def _ipython_display_(self) -> None:
        """Show the buttons.

        Raises:
            NotImplementedError: no widgets are available; IPython then uses `_repr_mimebundle_`.
        """
        if front_end.kernel() is None:
            raise NotImplementedError("tokens can be clicked only in a notebook")
        try:
            view = self.face.widget.get_view_spec()
        except Exception as error:  # of any kind: IPython would print the traceback
            raise NotImplementedError("tokens can be clicked only where anywidget works") from error
        front_end.CellOutput().draw({**self.generation._repr_mimebundle_(), front_end.VIEW: view})

    @property
    def face(self) -> Face:
        """The live output, created on first use.

        Raises:
            ImportError: anywidget is not installed.
        """
        if self._face is None:
            self._face = Face(self.press)
            self._draw()
        return self._face

    def press(self, name: str) -> None:
        """Act on a press of a button of this explorer or of a branch below."""
        kind, *numbers = name.split(".")
        if kind == "below":
            place, rest = name.removeprefix("below.").split(".", 1)
            below = self._below[int(place)]
            if isinstance(below, Explorer):
                below.press(rest)
        elif kind == "token":
            self._place = int(numbers[0])
            self._redraw()
        else:
            self._branch(*map(int, numbers))

    def html(self, prefix: str = "") -> str:
        """Return the explorer as HTML.

        Args:
            prefix: the beginning of the names of its buttons.
        """
        kind = "Branch" if self.generation.begun else "Generation"
        head = markup.header(kind, self.generation.outcome, hover=self.generation.ending)
        parts = (
            part.html(f"{prefix}below.{place}.") if isinstance(part, Explorer) else part
            for place, part in enumerate(self._below)
        )
        below = "".join(f'<div style="margin:0.6em 0 0 1.5em">{part}</div>' for part in parts)
        prompt = markup.prompt_line(self.generation.prompt or "")
        return markup.frame(f"{head}{prompt}{self._tokens(prefix)}{self._choices(prefix)}{below}")

    def _draw(self) -> None:
        with self._lock:
            if self._face is not None:
                self._face.draw(self.html())

    def _tokens(self, prefix: str) -> str:
        """Return the buttons of the tokens, wrapped as their text is.

        Several tokens of a single character share a button; a click shows the alternatives of the first token.
        """
        buttons, place = [], 0
        for group in by_character((self.generation.logprobs or ())[:MOST_TOKENS]):
            colour = shade(DEEPEST * (1 - probability(sum(token.logprob for token in group))))
            styles = [PLAIN, *([f"background:{colour}"] if colour else ())]
            if place <= self.generation.begun - 1 < place + len(group):
                styles.append("font-weight:bold;text-decoration:underline")
            if place == self._place:
                styles.append("outline:2px solid currentColor")
            text = group_text(group)
            words = button(
                f"{prefix}token.{place}", text.removesuffix("\n"), style=";".join(styles), hover=title(group, place)
            )
            buttons.append(words + "<br>" * text.endswith("\n"))
            place += len(group)
        style = "line-height:1.9;margin:0.2em 0;overflow-wrap:anywhere"
        return f'<div dir="auto" style="{style}">{"".join(buttons)}</div>'

    def _choices(self, prefix: str) -> str:
        """Return the alternatives of the chosen token as buttons; a hint before the first choice."""
        place, logprobs = self._place, self.generation.logprobs
        if place is None or logprobs is None:
            return markup.note(HINT)
        token = logprobs[place]
        others = [other for other in token.top if other.token_id != token.token_id]
        words = f"place {place}, instead of “{token.text}”:" if others else f"place {place}: nothing else was likely"
        buttons = [
            button(f"{prefix}other.{place}.{other.token_id}", f"{_words(other)} {percent(probability(other.logprob))}")
            for other in others
        ]
        return f'<div role="status">{markup.note(words)}{"".join(buttons)}</div>'

    def _branch(self, place: int, token_id: int) -> None:
        """Start a branch with another token at a place, and draw the branch on a thread."""
        try:
            branch: Any = self.generation.branch(at=place, token=token_id)
        except RekindleError as error:
            self._put(len(self._below), markup.passage(str(error)))
            return
        below = len(self._below)
        self._put(below, "")
        screen = _BranchScreen(branch.record, partial(self._put, below), partial(self._finish_branch, branch, below))
        front_end.draw_soon(partial(blocked, draw_record(branch.record, screen)), "explorer")

    def _put(self, below: int, part: "str | Explorer") -> None:
        """Show a part at a place below the tokens."""
        with self._lock:
            self._below[below : below + 1] = [part]
        self._redraw()

    def _finish_branch(self, branch: Handle, below: int) -> None:
        """Replace the display of a finished branch by an explorer of its tokens."""
        if branch.generation is None:
            self._put(below, branch.record.card("Branch"))
            return
        explorer = Explorer(branch.generation)
        explorer._redraw = self._redraw
        self._put(below, explorer)
        self.branches.append(explorer)


class _BranchScreen:
    """A running branch as HTML.

    Args:
        put: the function to show HTML.
        end: the function to call at the end of the branch.

    Attributes:
        seconds: the minimum time between two updates.
    """

    seconds: float = REDRAW_SECONDS

    def __init__(self, record: Record, put: Callable[[str], None], end: Callable[[], None]):
        self._record, self._put, self._end = record, put, end

    def draw(self) -> None:
        """Draw the text so far."""
        text = "".join(piece.text for piece in self._record.pieces.items)
        before = max(0, len(text) - markup.TAIL)
        self._put(markup.card("Branch", self._record.state, markup.growing(text[before:], before)))

    def close(self) -> None:
        """Replace the display by the result of the branch."""
        self._end()


def _words(token: TokenLogprob) -> str:
    """Return the label of a button for an alternative token."""
    return token.text.replace("\n", "↵").replace(" ", "\N{NO-BREAK SPACE}") or f"⟨{token.token_id}⟩"
