"""Parameters of queries: their check, and their description in /openapi.json."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from rekindle.core.request.checks import preview
from rekindle.server.common.errors import invalid_field

H = TypeVar("H", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of a query.

    Attributes:
        name: its name.
        choices: its values; empty for any text.
        default: its value if absent; None for none.
    """

    name: str
    choices: Sequence[str] = ()
    default: str | None = None

    def choice(self, request: Request) -> str:
        """Return the value in a request; raise ApiError if it is none of the choices."""
        value = request.query_params.get(self.name, self.default)
        if value is None or value not in self.choices:
            raise invalid_field(self.name, f"{self.name} must be {' or '.join(self.choices)}, got {preview(value)}")
        return value

    @property
    def description(self) -> dict[str, Any]:
        """The parameter in the form of OpenAPI."""
        schema: dict[str, Any] = {"type": "string"}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return {"name": self.name, "in": "query", "required": False, "schema": schema}


def reads(*queries: Query) -> Callable[[H], H]:
    """Return a decorator that notes the parameters in use by a handler, for its description."""

    def note(handler: H) -> H:
        handler.queries = queries  # type: ignore[attr-defined]
        return handler

    return note
