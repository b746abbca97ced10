"""Tools for the model: Python functions, or JSON schemas of functions executed by the caller."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rekindle.core.concurrency.waits import WaitStep
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import check_tools
from rekindle.tools.kinds import UnsupportedAnnotation, ValueKind, kind_of, object_schema, parse_object
from rekindle.tools.mcp.sessions import client_of


@dataclass(frozen=True, slots=True)
class Docstring:
    """Descriptions from a docstring.

    Attributes:
        summary: the description of the function.
        parameters: the description of each parameter, by name.
    """

    summary: str
    parameters: dict[str, str]


def docstring_of(function: Callable[..., Any]) -> Docstring:
    """Parse a function's docstring in Google, NumPy, reST (":param name:") or plain style."""
    from docstring_parser import ParseError, parse

    text = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
    try:
        parsed = parse(text or "")
    except ParseError:  # resembles one of these styles, but is malformed
        return Docstring(_join_lines(text or ""), {})
    summary = "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))
    return Docstring(
        _join_lines(summary), {each.arg_name.lstrip("*"): _join_lines(each.description or "") for each in parsed.params}
    )


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph; an empty line separates paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


AnyTool = Mapping[str, Any] | Callable[..., Any]
"""Tool as passed by the caller: a JSON schema, or an annotated function."""

_NAME = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class Tool:
    """Function for the model to call.

    Attributes:
        name: the name of the function in the prompt.
        schema: the JSON schema of the function in the prompt.
        begin: returns the step of a call, with the result or an error as its outcome; None for a JSON schema. Raises
            ValueError for a missing or unknown argument, or one of the wrong kind.
        owner: the name of the MCP server of the tool; empty for functions and schemas.
    """

    name: str
    schema: Mapping[str, Any]
    begin: Callable[[Mapping[str, Any]], WaitStep] | None
    owner: str = ""


def tools_of(items: Any) -> tuple[Tool, ...]:
    """Return the tools of a list of functions or JSON schemas.

    Raises:
        InvalidRequest: an item is neither a function nor a JSON schema, or a function has a parameter without
            annotation, or two functions have the same name.
    """
    check_list(items)
    tools = tuple(tool_of(f"tools[{place}]", each) for place, each in enumerate(items))
    check_names(tools)
    return tools


def check_list(items: Any) -> None:
    """Raise InvalidRequest for an argument `tools` that is not a list with items."""
    if callable(items) and not isinstance(items, Mapping):
        raise InvalidRequest(
            f"tools must be a list of functions or JSON schemas, got {preview(items)}; put it in a list"
        )
    if not isinstance(items, Sequence) or not items or isinstance(items, str | bytes):
        check_tools(items)


def check_names(tools: Sequence[Tool]) -> None:
    """Raise InvalidRequest for two tools with one name, unless the caller executes them."""
    owners: dict[str, list[str]] = {}
    for tool in tools:
        if tool.begin is not None:
            owners.setdefault(tool.name, []).append(f"one of {tool.owner}" if tool.owner else "a function")
    for name, each in owners.items():
        if len(each) > 1:
            whose = f" ({', '.join(each)})" if any(owner != "a function" for owner in each) else ""
            raise InvalidRequest(f"tools must have different names, and {len(each)} are called {name!r}{whose}")


def schemas_of(items: Any) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of tools; raises as `tools_of` does."""
    schemas = [tool.schema for tool in tools_of(items)]
    check_tools(schemas)
    return schemas


def tool_of(place: str, tool: Any) -> Tool:
    """Return the tool of a function or a JSON schema.

    Args:
        place: the place of the tool for errors, such as "tools[0]".

    Raises:
        InvalidRequest: as in `tools_of`.
    """
    if client_of(tool) is not None:
        raise InvalidRequest(
            f"{place} is a client of an MCP server, whose tools are listed and called by run_tools and by chats; other "
            "calls take functions and JSON schemas"
        )
    if isinstance(tool, Mapping) or not callable(tool):
        schema: Any = tool if isinstance(tool, Mapping) else {}
        check_tools([tool])
        function = schema.get("function", schema)
        return Tool(str(function.get("name", "")) if isinstance(function, Mapping) else "", schema, None)
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
    return Tool(name, {"type": "function", "function": definition}, partial(_function_call, tool, parameters))


def _function_call(
    function: Callable[..., Any], parameters: Mapping[str, tuple[ValueKind, bool]], values: Mapping[str, Any]
) -> WaitStep:
    from rekindle.tools.calling import FunctionCall  # other calls describe tools alone

    return FunctionCall(function, parse_object(parameters, values))


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
