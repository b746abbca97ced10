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
from rekindle.notebook import front_end
from rekindle.notebook.live_text import draw_record
from rekindle.results.generation import Generation
from rekindle.results.heat_map import DEEPEST, MOST_TOKENS, by_character, group_text, probability, shade, title

REDRAW_SECONDS = 0.25
"""The minimum time between two updates of a running branch."""
HINT = "choose a token to see others that were likely in its place"
CARD_CLASS = "rekindle-explorer"
"""The CSS class of the root widget."""
CARD_STYLE = (
    f"<style>.{CARD_CLASS}{{border-radius:8px;margin-right:1.4em;background:{markup.SURFACE};line-height:1.5}}</style>"
)
"""The parts of a card's style without a trait of a widget's layout."""
SHADES = 10
"""The number of button shades, limited because the front end keeps a model of each."""


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
        self._lock = threading.Lock()  # each branch is drawn on a separate thread
        self._root: Any = None
        self._widgets: list[Any] = []

    def close(self) -> None:
        """Close the widgets of this explorer and of its branches permanently."""
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
            NotImplementedError: no widgets are available; IPython then uses `_repr_mimebundle_`.
        """
        if front_end.kernel() is None:
            raise NotImplementedError("tokens can be clicked only in a notebook")
        try:
            root = self.root
        except Exception as error:  # of any kind: IPython would print the traceback
            raise NotImplementedError("tokens can be clicked only where ipywidgets works") from error
        front_end.CellOutput().draw({**self._repr_mimebundle_(), front_end.VIEW: root.get_view_spec()})

    @property
    def root(self) -> Any:
        """The root widget, created on first use."""
        if self._root is None:
            from ipywidgets import HBox, Layout, VBox

            wrapped = Layout(flex_flow="row wrap", align_items="baseline")
            self._choices = self._create(HBox, (self._html(markup.note(HINT)),), layout=wrapped)
            self._below = self._create(VBox, (), layout=Layout(margin="0 0 0 1.5em"))
            tokens = self._create(HBox, self._tokens(), layout=wrapped)
            kind = "Branch" if self.generation.begun else "Generation"
            head = markup.header(kind, self.generation.outcome, hover=self.generation.ending)
            title = self._html(CARD_STYLE + head + markup.prompt_line(self.generation.prompt or ""))
            frame = Layout(border=f"1px solid {markup.LINE}", padding="0.6em 0.9em", max_width="72em")
            self._root = self._create(VBox, [title, tokens, self._choices, self._below], layout=frame)
            self._root.add_class(CARD_CLASS)
        return self._root

    def _tokens(self) -> list[Any]:
        """Return the buttons of the tokens, and a break after each that ends a line.

        Several tokens of a single character share a button; a click shows the alternatives of the first token.
        """
        from ipywidgets import Box, ButtonStyle, Layout

        layout = Layout(width="auto", min_width="0", height="auto", margin="0", padding="0 1px", flex="0 0 auto")
        colours = [shade(DEEPEST * level / SHADES) or "transparent" for level in range(SHADES + 1)]
        styles = [ButtonStyle(button_color=colour) for colour in colours]
        fork = ButtonStyle(button_color=colours[0], font_weight="bold", text_decoration="underline")
        buttons, place = [], 0
        for group in by_character((self.generation.logprobs or ())[:MOST_TOKENS]):
            level = round(SHADES * (1 - probability(sum(token.logprob for token in group))))
            is_fork = place <= self.generation.begun - 1 < place + len(group)
            button = self._button(_button_text(group_text(group)), partial(self._choose, place, group[0]))
            button.layout, button.style = layout, fork if is_fork else styles[level]
            button.tooltip = title(group, place)
            buttons.append(button)
            if group_text(group).endswith("\n"):
                buttons.append(self._create(Box, (), layout=Layout(flex="0 0 100%", height="0")))
            place += len(group)
        return buttons

    def _choose(self, place: int, token: TokenLogprob) -> None:
        """Show the alternatives of a token."""
        others = [other for other in token.top if other.token_id != token.token_id]
        words = f"place {place}, instead of “{token.text}”:" if others else f"place {place}: nothing else was likely"
        buttons = []
        for other in others:
            likely = percent(probability(other.logprob))
            buttons.append(self._button(f"{_button_text(other.text)} {likely}", partial(self._branch, place, other)))
        for button in buttons:
            button.layout.width = "auto"
        self._choices.children = (self._html(markup.visible(words)), *buttons)

    def _branch(self, place: int, token: TokenLogprob) -> None:
        """Start a branch with another token at a place, and draw the branch on a thread."""
        output = self._html("")
        with self._lock:
            self._below.children = (*self._below.children, output)
        try:
            branch: Any = self.generation.branch(at=place, token=token.token_id)
        except RekindleError as error:
            output.value = markup.passage(str(error))
            return
        screen = _BranchScreen(branch.record, output, partial(self._finish_branch, branch, output))
        follow = partial(blocked, draw_record(branch.record, screen))
        front_end.draw_soon(follow, "explorer")

    def _finish_branch(self, branch: Handle, output: Any) -> None:
        """Replace the display of a finished branch by an explorer of its tokens."""
        if branch.generation is None:
            output.value = branch.record.card("Branch")
            return
        explorer = Explorer(branch.generation)
        with self._lock:
            below = self._below.children
            self._below.children = tuple(explorer.root if child is output else child for child in below)
            self.branches.append(explorer)

    def _button(self, description: str, press: Callable[[], None]) -> Any:
        from ipywidgets import Button

        button = self._create(Button, description=description)
        button.on_click(lambda _: press())
        return button

    def _html(self, html: str) -> Any:
        from ipywidgets import HTML

        return self._create(HTML, html)

    def _create(self, kind: Any, *arguments: Any, **traits: Any) -> Any:
        widget = kind(*arguments, **traits)
        self._widgets.append(widget)
        return widget


class _BranchScreen:
    """A running branch as HTML in a widget.

    Attributes:
        seconds: the minimum time between two updates.
    """

    seconds: float = REDRAW_SECONDS

    def __init__(self, record: Record, html: Any, end: Callable[[], None]):
        self._record, self._html, self._end = record, html, end

    def draw(self) -> None:
        """Draw the text so far."""
        text = "".join(piece.text for piece in self._record.pieces.items)
        before = max(0, len(text) - markup.HEAD)
        self._html.value = markup.card("Branch", self._record.state, markup.growing(text[before:], before))

    def close(self) -> None:
        """Replace the display by the result of the branch."""
        self._end()


def _button_text(text: str) -> str:
    """Return the label of a button for a text: with visible spaces and without line ends."""
    return text.replace("\n", "").replace(" ", "\N{NO-BREAK SPACE}") or "\N{NO-BREAK SPACE}"
