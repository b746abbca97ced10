"""A generation whose tokens can be clicked: a token shows what was likely in its place, and a choice branches there."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.core import markup
from rekindle.core.concurrency.threads import soon
from rekindle.core.concurrency.waits import blocked
from rekindle.core.errors import InvalidRequest, RekindleError
from rekindle.core.request.tokens import TokenLogprob
from rekindle.notebook import front_end
from rekindle.notebook.live_text import drawing
from rekindle.results.generation import Generation
from rekindle.results.heat_map import DEEPEST, MOST_TOKENS, by_character, group_text, probability, shade, title

REDRAWN_SECONDS = 0.25
"""The least time between two drawings of a branch that grows."""
SHADES = 10
"""How many shades of buttons there are: a front end keeps a model of each."""


class Explorer:
    """A generation in the output of a cell, with a button for each token, and its branches below it.

    Where there are no widgets, it is shown as the generation is.

    Attributes:
        generation: made with `logprobs`.
        branches: the explorers of the branches that were chosen and have ended, in that order.

    Raises:
        InvalidRequest: the generation has no alternatives to choose from.
    """

    def __init__(self, generation: Generation):
        if not any(token.top for token in generation.logprobs or ()):
            raise InvalidRequest("there is nothing to choose from: generate with logprobs=5, for 5 alternatives each")
        self.generation = generation
        self.branches: list[Explorer] = []
        self._lock = threading.Lock()  # each branch is followed on a thread of its own
        self._root: Any = None
        self._widgets: list[Any] = []

    def close(self) -> None:
        """Close the widgets of this explorer and of its branches, for good."""
        for branch in self.branches:
            branch.close()
        for widget in self._widgets:
            for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
                if part is not None:
                    part.close()
        self._widgets.clear()

    def __repr__(self) -> str:
        return f"<rekindle.Explorer of {self.generation!r}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return self.generation._repr_mimebundle_()

    def _ipython_display_(self) -> None:
        """Show the buttons.

        Raises:
            NotImplementedError: there can be none here; IPython then takes `_repr_mimebundle_`.
        """
        if front_end.kernel() is None:
            raise NotImplementedError("tokens can be clicked only in a notebook")
        try:
            root = self.root
        except Exception as error:  # for whatever reason: IPython would print the traceback
            raise NotImplementedError("tokens can be clicked only where ipywidgets works") from error
        front_end.CellOutput().draw({**self._repr_mimebundle_(), front_end.VIEW: root.get_view_spec()})

    @property
    def root(self) -> Any:
        """The widget that has all others; made when it is first asked for."""
        if self._root is None:
            from ipywidgets import HBox, Layout, VBox

            wrapped = Layout(flex_flow="row wrap", align_items="baseline")
            self._choices = self._made(HBox, (), layout=wrapped)
            self._below = self._made(VBox, (), layout=Layout(margin="0 0 0 1.5em"))
            tokens = self._made(HBox, self._tokens(), layout=wrapped)
            kind = "Branch" if self.generation.begun else "Generation"
            head = self._html(f"<b>{kind}</b> {markup.visible(self.generation.ending)}")
            self._root = self._made(VBox, [head, tokens, self._choices, self._below])
        return self._root

    def _tokens(self) -> list[Any]:
        """Return a button for each token; several that make up one character have one, which stands for the first."""
        from ipywidgets import ButtonStyle, Layout

        layout = Layout(width="auto", min_width="0", height="auto", margin="0", padding="0 1px", flex="0 0 auto")
        colours = [shade(DEEPEST * level / SHADES) or "transparent" for level in range(SHADES + 1)]
        styles = [ButtonStyle(button_color=colour) for colour in colours]
        fork = ButtonStyle(button_color=colours[0], font_weight="bold", text_decoration="underline")
        made, place = [], 0
        for group in by_character((self.generation.logprobs or ())[:MOST_TOKENS]):
            level = round(SHADES * (1 - probability(sum(token.logprob for token in group))))
            chosen = place <= self.generation.begun - 1 < place + len(group)
            button = self._button(_spaced(group_text(group)), partial(self._choose, place, group[0]))
            button.layout, button.style = layout, fork if chosen else styles[level]
            button.tooltip = title(group, place)
            made.append(button)
            place += len(group)
        return made

    def _choose(self, place: int, token: TokenLogprob) -> None:
        """Show what was likely in a place."""
        others = [other for other in token.top if other.token_id != token.token_id]
        words = f"place {place}, instead of “{token.text}”:" if others else f"place {place}: nothing else was likely"
        buttons = []
        for other in others:
            likely = markup.percent(probability(other.logprob))
            buttons.append(self._button(f"{_spaced(other.text)} {likely}", partial(self._go_on, place, other)))
        for button in buttons:
            button.layout.width = "auto"
        self._choices.children = (self._html(markup.visible(words)), *buttons)

    def _go_on(self, place: int, token: TokenLogprob) -> None:
        """Branch with another token, and follow what comes of it on a thread."""
        growing = self._html("")
        with self._lock:
            self._below.children = (*self._below.children, growing)
        try:
            branch: Any = self.generation.branch(at=place, token=token.token_id)
        except RekindleError as error:
            growing.value = markup.passage(str(error))
            return
        screen = _Growing(branch.record, growing, partial(self._grown, branch, growing))
        follow = partial(blocked, drawing(branch.record, screen))
        soon(partial(front_end.context_of_threads().run, follow), "explorer")

    def _grown(self, branch: Handle, growing: Any) -> None:
        """Let the tokens of a branch that has ended be chosen too."""
        if branch.generation is None:
            growing.value = branch.record.card("Branch")
            return
        explorer = Explorer(branch.generation)
        with self._lock:
            below = self._below.children
            self._below.children = tuple(explorer.root if child is growing else child for child in below)
            self.branches.append(explorer)

    def _button(self, description: str, press: Callable[[], None]) -> Any:
        from ipywidgets import Button

        button = self._made(Button, description=description)
        button.on_click(lambda _: press())
        return button

    def _html(self, html: str) -> Any:
        from ipywidgets import HTML

        return self._made(HTML, html)

    def _made(self, kind: Any, *arguments: Any, **traits: Any) -> Any:
        widget = kind(*arguments, **traits)
        self._widgets.append(widget)
        return widget


class _Growing:
    """A branch while it grows, as HTML in a widget.

    Attributes:
        seconds: the least time between two drawings.
    """

    seconds: float = REDRAWN_SECONDS

    def __init__(self, record: Record, html: Any, end: Callable[[], None]):
        self._record, self._html, self._end = record, html, end

    def draw(self) -> None:
        """Draw the text as far as it has come."""
        text = "".join(piece.text for piece in self._record.pieces.items)
        before = max(0, len(text) - markup.HEAD)
        self._html.value = markup.card("Branch", self._record.state, markup.growing(text[before:], before))

    def close(self) -> None:
        """Put what has come of it in its place."""
        self._end()


def _spaced(text: str) -> str:
    """Return a text whose spaces a button shows."""
    return text.replace("\n", "").replace(" ", "\N{NO-BREAK SPACE}") or "\N{NO-BREAK SPACE}"
