"""Tools for the model: Python functions, or JSON schemas of functions executed by the caller."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import check_tools
from rekindle.tools.docstring import docstring_of
from rekindle.tools.kinds import UnsupportedAnnotation, ValueKind, kind_of, object_schema, parse_object

AnyTool = Mapping[str, Any] | Callable[..., Any]
"""Tool as passed by the caller: a JSON schema, or an annotated function."""

_NAME = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class Tool:
    """Function for the model to call.

    Attributes:
        name: the name of the function in the prompt.
        schema: the JSON schema of the function in the prompt.
        function: the Python function; None for a JSON schema.
        parameters: (kind, is required) of each parameter, by name; empty for a JSON schema.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any] | None
    parameters: Mapping[str, tuple[ValueKind, bool]]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, parsed by the function's annotations.

        Raises:
            ValueError: an argument is missing, unknown or of the wrong kind; the message names the argument.
        """
        return parse_object(self.parameters, values)


def tools_of(items: Any) -> tuple[Tool, ...]:
    """Return the tools of a list of functions or JSON schemas.

    Raises:
        InvalidRequest: an item is neither a function nor a JSON schema, or a function has a parameter without
            annotation, or two functions have the same name.
    """
    if callable(items) and not isinstance(items, Mapping):
        raise InvalidRequest(
            f"tools must be a list of functions or JSON schemas, got {preview(items)}; put it in a list"
        )
    if not isinstance(items, Sequence) or not items or isinstance(items, str | bytes):
        check_tools(items)
    tools = tuple(_tool(f"tools[{place}]", each) for place, each in enumerate(items))
    names = [tool.name for tool in tools if tool.function is not None]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"tools must have different names, and {names.count(name)} are called {name!r}")
    return tools


def schemas_of(items: Any) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of tools; raises as `tools_of` does."""
    schemas = [tool.schema for tool in tools_of(items)]
    check_tools(schemas)
    return schemas


def _tool(place: str, tool: Any) -> Tool:
    if isinstance(tool, Mapping) or not callable(tool):
        schema: Any = tool if isinstance(tool, Mapping) else {}
        check_tools([tool])
        function = schema.get("function", schema)
        return Tool(str(function.get("name", "")) if isinstance(function, Mapping) else "", schema, None, {})
    if isinstance(tool, type):
        raise InvalidRequest(
            f"{place} must be a function or the JSON schema of one, got the class {tool.__name__}; write a function "
            "that takes its fields, or one object of it"
        )
    name = getattr(tool, "__name__", "")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{place} needs a name for the model to call it by: define {preview(tool)} with def")
    docstring, parameters = docstring_of(tool), _parameters(f"{place}, {name}()", tool)
    schemas = {}
    for parameter, (kind, required) in parameters.items():
        text = docstring.parameters.get(parameter)
        schemas[parameter] = ({**kind.schema, "description": text} if text else kind.schema), required
    definition = {"name": name, "description": docstring.summary, "parameters": object_schema(schemas)}
    return Tool(name, {"type": "function", "function": definition}, tool, parameters)


def _parameters(place: str, function: Callable[..., Any]) -> dict[str, tuple[ValueKind, bool]]:
    """Return (kind, is required) of each parameter of a function, by name.

    Args:
        place: the function in error messages, such as "tools[0], weather()".
    """
    try:
        signature = inspect.signature(function)
        hinted = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(hinted, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"{place}: its parameters cannot be read ({error}); give a JSON schema instead") from error
    parameters = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"{place}: parameter {str(parameter)!r} cannot be passed by name; use named parameters"
            )
        if name not in hints:
            raise InvalidRequest(
                f"{place}: parameter {name!r} has no annotation, so its type is unknown; annotate it, such as "
                f"{name}: str"
            )
        try:
            parameters[name] = kind_of(hints[name]), parameter.default is parameter.empty
        except (UnsupportedAnnotation, NameError) as error:
            raise InvalidRequest(
                f"{place}: the annotation of {name!r} has no JSON schema: {error}; use str, int, float, bool, "
                "None, Literal, Enum, list, dict, tuple, a union, a TypedDict, a dataclass or a pydantic model"
            ) from error
    return parameters
