"""Tools: Python functions, or JSON schemas of functions that are called elsewhere."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.text.chat import check_tools
from rekindle.tools.docstring import docstring_of
from rekindle.tools.kinds import Undescribed, ValueKind, kind_of, object_schema, read_object

AnyTool = Mapping[str, Any] | Callable[..., Any]
"""A tool as it is given: a JSON schema, or a function with annotations."""

_NAME = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: the name that the model calls it by.
        schema: what the model is told of it.
        function: the function itself; None for a schema.
        parameters: the kind of each parameter of a function, with whether it is required.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any] | None
    parameters: Mapping[str, tuple[ValueKind, bool]]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as the function's annotations say.

        Raises:
            ValueError: one is missing, unknown, or of another kind; the message names it.
        """
        return read_object(self.parameters, given)


def tools_of(given: Any) -> tuple[Tool, ...]:
    """Return tools that were given as functions or schemas.

    Raises:
        InvalidRequest: one is neither, or a function whose parameters are not annotated; or two have one name.
    """
    if callable(given) and not isinstance(given, Mapping):
        raise InvalidRequest(
            f"tools must be a list of functions or JSON schemas, got {preview(given)}; put it in a list"
        )
    if not isinstance(given, Sequence) or not given or isinstance(given, str | bytes):
        check_tools(given)
    tools = tuple(_tool(f"tools[{place}]", each) for place, each in enumerate(given))
    names = [tool.name for tool in tools if tool.function is not None]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"tools must have names of their own, and {names.count(name)} are called {name!r}")
    return tools


def schemas_of(given: Any) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of tools; raises as `tools_of`."""
    schemas = [tool.schema for tool in tools_of(given)]
    check_tools(schemas)
    return schemas


def _tool(place: str, given: Any) -> Tool:
    if isinstance(given, Mapping) or not callable(given):
        schema: Any = given if isinstance(given, Mapping) else {}
        check_tools([given])
        function = schema.get("function", schema)
        return Tool(str(function.get("name", "")) if isinstance(function, Mapping) else "", schema, None, {})
    if isinstance(given, type):
        raise InvalidRequest(
            f"{place} must be a function or the JSON schema of one, got the class {given.__name__}; write a function "
            "that takes its fields, or one object of it"
        )
    name = getattr(given, "__name__", "")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{place} needs a name that the model can call it by: define {preview(given)} with def")
    said, parameters = docstring_of(given), _parameters(f"{place}, {name}()", given)
    schemas = {}
    for parameter, (kind, required) in parameters.items():
        words = said.parameters.get(parameter)
        schemas[parameter] = ({**kind.schema, "description": words} if words else kind.schema), required
    described = {"name": name, "description": said.summary, "parameters": object_schema(schemas)}
    return Tool(name, {"type": "function", "function": described}, given, parameters)


def _parameters(place: str, function: Callable[..., Any]) -> dict[str, tuple[ValueKind, bool]]:
    """Return the parameters of a function by name."""
    try:
        signature = inspect.signature(function)
        hinted = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(hinted, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"{place}: its parameters cannot be read ({error}); give a JSON schema instead") from error
    found = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"{place}: parameter {str(parameter)!r} has no name that a model could give it by; use named parameters"
            )
        if name not in hints:
            raise InvalidRequest(
                f"{place}: parameter {name!r} has no annotation, so the model cannot be told what it is; write one, "
                f"such as {name}: str"
            )
        try:
            found[name] = kind_of(hints[name]), parameter.default is parameter.empty
        except (Undescribed, NameError) as error:
            raise InvalidRequest(
                f"{place}: the annotation of {name!r} cannot be told to a model: {error}; use str, int, float, bool, "
                "None, Literal, Enum, list, dict, tuple, a union, a TypedDict, a dataclass or a pydantic model"
            ) from error
    return found
