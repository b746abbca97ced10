"""The settings of a session and the parameters of a request, as tables in a cell."""

from dataclasses import fields
from typing import Any

from rekindle import markup
from rekindle.core.request import params
from rekindle.settings import engine


class Settings(engine.Settings):
    __doc__ = engine.Settings.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the values, also with a record of the core, without a table."""
        return isinstance(other, engine.Settings) and _values(self) == _values(other)

    __hash__ = engine.Settings.__hash__

    @classmethod
    def of(cls, settings: engine.Settings) -> "Settings":
        """Return settings with their table."""
        return settings if isinstance(settings, cls) else cls(**_values(settings))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.named_values("Settings", _values(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print one line per setting as the result of a cell, and the repr inside a list."""
        printer.text(repr(self) if printer.indentation else self._repr_mimebundle_()["text/plain"])


class SamplingParams(params.SamplingParams):
    __doc__ = params.SamplingParams.__doc__
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Compare the values, also with a record of the core, without a table."""
        return isinstance(other, params.SamplingParams) and _values(self) == _values(other)

    __hash__ = params.SamplingParams.__hash__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.named_values("SamplingParams", _values(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print one line per parameter as the result of a cell, and the repr inside a list."""
        printer.text(repr(self) if printer.indentation else self._repr_mimebundle_()["text/plain"])


def _values(record: engine.Settings | params.SamplingParams) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
