"""The models of this machine, as a list with their sizes and the lines to open them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, overload

from rekindle import markup
from rekindle.core.words import quantity, size_text, spelled

SHOWN: Final = 40
"""Most models of a place in a card before the rest is folded."""
_CODE: Final = (
    "font-family:monospace;font-size:0.95em;white-space:pre-wrap;overflow-wrap:anywhere;user-select:all;"
    "-webkit-user-select:all;cursor:text;display:inline-block;min-width:14em"
)
"""The style of a line of code; a click selects the whole line and nothing else."""
_CELL: Final = "padding:0.15em 1.2em 0.15em 0;border:0;vertical-align:top;text-align:"
_HEAD: Final = {"opens by": "left", "size": "right", "files": "left", "memory": "left"}
"""The names of the columns, and their sides."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in files of this machine, from `rekindle.models`.

    Attributes:
        name: the name or the path for `rekindle.open`.
        path: the GGUF file, or the directory.
        place: its program or its folder, as "Ollama".
        size: the bytes of its weight files.
        format: the format of these files and the kind of their numbers, as "GGUF Q4_K_M"; "" if unknown.
        architecture: the name of its architecture in the files; "" if unknown.
        needs: about how many bytes of memory it takes with the tokens of the list; None if unknown.
        fits: whether the memory of this machine suffices; None if unknown.
        refusal: the reason why it does not open, in one line; "" if the beginnings of its files have none.
    """

    name: str
    path: Path
    place: str
    size: int
    format: str
    architecture: str
    needs: int | None
    fits: bool | None
    refusal: str = ""

    @property
    def code(self) -> str:
        """Line of code to open it."""
        return f"await rekindle.open({_literal(self.name)})"

    def __repr__(self) -> str:
        return f"<rekindle.LocalModel {self.name!r}, {', '.join(filter(None, self._facts()))}>"

    def _facts(self) -> tuple[str, str, str]:
        """Return its size, its files, and its memory or the reason against it, as texts."""
        files = ", ".join(filter(None, (self.format, self.architecture)))
        return size_text(self.size), files, f"does not open: {self.refusal}" if self.refusal else self._memory()

    def _memory(self) -> str:
        if self.needs is None:
            return ""
        about = f"about {size_text(self.needs)}"
        return about if self.fits is None else f"fits, {about}" if self.fits else f"too large, {about}"


class LocalModels(Sequence[LocalModel]):
    """The models of Ollama, LM Studio, the hub's cache and folders of this machine, from `rekindle.models`.

    Args:
        models: the models, by place.
        memory: the memory of this machine, as a phrase.
        tokens: the tokens of context in the memory of each model.
        skipped: a line about each unreadable folder.

    Attributes:
        skipped: as above.
    """

    def __init__(self, models: Sequence[LocalModel], memory: str, tokens: int, skipped: Sequence[str] = ()):
        self._models, self._memory, self._tokens = tuple(models), memory, tokens
        self.skipped = tuple(skipped)

    @overload
    def __getitem__(self, place: int) -> LocalModel: ...
    @overload
    def __getitem__(self, place: slice) -> "LocalModels": ...
    def __getitem__(self, place: int | slice) -> "LocalModel | LocalModels":
        """Return the model at an index, or the models of a slice."""
        if isinstance(place, slice):
            return LocalModels(self._models[place], self._memory, self._tokens, self.skipped)
        return self._models[place]

    def __len__(self) -> int:
        return len(self._models)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, names: bool = False) -> Iterator[str]:
        """Yield the list as lines of text.

        Args:
            names: whether models have their names in place of lines of code.
        """
        yield f"{self._state}; {self._note}"
        for place, models in self._by_place().items():
            yield f"\n{spelled(place)}"
            rows = [(spelled(each.name) if names or each.refusal else each.code, *each._facts()) for each in models]
            widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
            for row in rows:
                yield "  " + "  ".join(map(str.ljust, row, widths)).rstrip()
        if self.skipped:
            yield "\n" + "\n".join(map(spelled, self.skipped))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the list if this is the result of a cell, and a line inside a container."""
        printer.text(f"<rekindle.LocalModels of {self._state}>" if printer.indentation else repr(self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        places = "".join(self._place(place, models) for place, models in self._by_place().items())
        notes = "".join(map(markup.note, self.skipped))
        html = markup.card("Models", self._state, markup.note(self._note), places, notes)
        return markup.bundle(repr(self), html)

    @property
    def _state(self) -> str:
        return quantity(len(self), "model") if self else "no models here"

    @property
    def _note(self) -> str:
        if not self:
            return 'await rekindle.open() downloads a small model, await rekindle.open("auto") one for this machine'
        return f"{self._memory}; the memory of a model is for {self._tokens:,} tokens of context"

    def _by_place(self) -> dict[str, list[LocalModel]]:
        places: dict[str, list[LocalModel]] = {}
        for model in self._models:
            places.setdefault(model.place, []).append(model)
        return places

    def _place(self, place: str, models: Sequence[LocalModel]) -> str:
        """Return the models of a place as HTML, with the rest folded."""
        rest = models[SHOWN:]
        more = markup.folded(quantity(len(rest), "more model"), _table(rest)) if rest else ""
        return f'<div style="margin:0.6em 0 0 0"><b>{markup.visible(place)}</b>{_table(models[:SHOWN])}{more}</div>'


def _table(models: Sequence[LocalModel]) -> str:
    pale = f"font-weight:normal;{markup.PALE}"
    head = "".join(f'<th scope="col" style="{_CELL}{side};{pale}">{name}</th>' for name, side in _HEAD.items())
    rows = "".join(f'<tr style="{markup.row_style("td")}">{_cells(model)}</tr>' for model in models)
    group = 'role="group" aria-label="models" tabindex="0" style="overflow-x:auto"'
    style = "border-collapse:collapse;margin:0.3em 0 0 0;font-size:inherit"
    return f'<div {group}><table style="{style}"><tr style="{markup.row_style("th")}">{head}</tr>{rows}</table></div>'


def _cells(model: LocalModel) -> str:
    size, files, memory = model._facts()
    # Nothing of a line is spelled out or escaped twice: its copy is code.
    code = f'<span style="{_CODE}">{markup.visible(model.code)}</span>'
    name = markup.visible(model.name) if model.refusal else code
    cells = (name, markup.unbroken(size), markup.visible(files), markup.unbroken(memory))
    sides = zip(cells, _HEAD.values(), strict=True)
    return "".join(f'<td style="{_CELL}{side}">{html}</td>' for html, side in sides)


def _literal(text: str) -> str:
    """Return the literal of a str in double quotes, with invisible characters as escapes."""
    literal = repr(text)
    if literal.startswith('"'):
        return literal
    return '"' + literal[1:-1].replace(r"\'", "'").replace('"', r"\"") + '"'
