"""Tools and tool choices in bodies, with OpenAI's two forms: nested in chats, flat in responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.core.text.responses.grammars.terms import regex_literal
from rekindle.server.reading.fields import Fields

KINDS: Final = ("function", "custom")
INPUT: Final = "input"
"""The argument of a custom tool, as the model sees it."""


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A tool whose input is a text instead of JSON.

    Attributes:
        syntax: the syntax of its grammar, "lark" or "regex"; None for any text.
        definition: the grammar.
    """

    syntax: str | None = None
    definition: str = ""

    def accepts(self, text: str) -> bool:
        """Return True if a text follows the grammar."""
        if self.syntax is None:
            return True
        matcher = _matcher(self.syntax, self.definition).deep_copy()
        return bool(matcher.consume_tokens(list(text.encode("utf-8", "surrogatepass"))) and matcher.is_accepting())

    @property
    def lark(self) -> str:
        """Grammar of the input in Lark's syntax; empty for any text."""
        if self.syntax == "regex" and self.definition:
            return f"start: {regex_literal(self.definition)}"
        return self.definition

    def function(self, name: str, description: str) -> dict[str, Any]:
        """Return the tool as a function of one text."""
        kind: dict[str, Any] = {"type": "string"}
        if self.syntax == "regex":
            kind["pattern"] = f"^(?:{self.definition})$"
        if self.syntax is not None:
            description = f"{description}\nThe input follows this grammar ({self.syntax}):\n{self.definition}".lstrip()
        parameters = {"type": "object", "properties": {INPUT: kind}, "required": [INPUT]}
        return {"name": name, "description": description, "parameters": parameters}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a body.

    Attributes:
        options: the keywords of the session; empty without tools.
        custom: the custom tools by name.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    custom: Mapping[str, CustomTool] = field(default_factory=dict)


def read_tools(body: Fields, *, nested: bool) -> Tools:
    """Take the tools and the tool choice.

    Args:
        body: the fields of the body.
        nested: whether the fields of a tool are below the name of its type, as in chats.

    Raises:
        ApiError: a tool is malformed, or the choice requires another one.
    """
    entries, choice = body.take("tools", list) or [], body.any("tool_choice")
    if not entries:
        if choice not in (None, "auto", "none"):
            body.refuse("tool_choice", "requires tools")
        return Tools()
    pairs, custom = list[tuple[Any, dict[str, Any]]](), dict[str, CustomTool]()
    for entry in entries:
        function, custom_tool = _tool(body, entry, nested)
        pairs.append((function.get("name"), {"type": "function", "function": function}))
        if custom_tool is not None:
            custom[function["name"]] = custom_tool
    allowed, mode = _choice(body, choice, nested)
    names = [name for name, _ in pairs]
    for name in allowed:
        if name not in names:
            body.refuse("tool_choice", f"names a tool that is not in tools: {name!r:.80}")
    tools = [function for name, function in pairs if not allowed or name in allowed]
    options: dict[str, Any] = {"tools": tools, "tool_choice": mode}
    if mode not in ("auto", "none"):
        required = [mode] if mode in names else allowed or names
        grammars = {name: custom[name].lark for name in required if name in custom and custom[name].lark}
        options |= {"tool_grammars": grammars} if grammars else {}
    return Tools(options, custom)


def single_call(one_call: bool) -> dict[str, Any]:
    """Return the session's keyword for answers with at most one call; empty for answers with any number."""
    return {"parallel_tool_calls": False} if one_call else {}


def _tool(body: Fields, entry: Any, nested: bool) -> tuple[dict[str, Any], CustomTool | None]:
    """Return the function of a tool, and the custom tool if it is one."""
    kind = entry.get("type", "function" if nested else None) if isinstance(entry, dict) else None
    fields = entry.get(kind) if nested and kind in KINDS else entry
    name = fields.get("name") if isinstance(fields, dict) else None
    if kind not in KINDS or not isinstance(fields, dict) or (not nested and not isinstance(name, str)):
        form = "'function': ..." if nested else "'name': ..."
        body.refuse("tools", f"must each be {{'type': 'function', {form}}} or of type 'custom', got {preview(entry)}")
    if kind == "custom" and isinstance(name, str):
        custom = _custom(body, fields.get("format"), nested)
        return custom.function(name, fields.get("description") or ""), custom
    return {key: value for key, value in fields.items() if key != "type" and value is not None}, None


def _custom(body: Fields, form: Any, nested: bool) -> CustomTool:
    """Return the custom tool with a format of its input."""
    match form:
        case None | {"type": "text"}:
            return CustomTool()
        case {"type": "grammar", "grammar": dict(grammar)} if nested:
            pass
        case {"type": "grammar"} if not nested:
            grammar = form
        case _:
            body.refuse("tools", f"has a custom tool whose format is neither text nor a grammar: {preview(form)}")
    match grammar:
        case {"syntax": "lark" | "regex" as syntax, "definition": str(definition)}:
            error = _matcher(syntax, definition).get_error()
        case _:
            body.refuse("tools", f"has a grammar without syntax (lark or regex) and definition: {preview(grammar)}")
    if error:
        body.refuse("tools", f"has a grammar that cannot be read: {error}")
    return CustomTool(syntax, definition)


def _choice(body: Fields, choice: Any, nested: bool) -> tuple[Sequence[str], str]:
    """Return the names of the allowed tools, empty for all, and the choice among them."""
    names: Sequence[str] = ()
    match choice:
        case None | "auto" | "none" | "required":
            mode = choice or "auto"
        case {"type": "function" | "custom"} if name := _name(choice, nested):
            mode = name
        case {"type": "allowed_tools"} if entry := _allowed(choice, nested):
            names, mode = entry
        case _:
            one = "{'type': 'function', 'function': {'name': ...}}" if nested else "{'type': 'function', 'name': ...}"
            rule = f"must be auto, none, required, {one} or of type allowed_tools"
            body.refuse("tool_choice", f"{rule}, got {preview(choice)}")
    return names, mode


def _allowed(choice: Mapping[str, Any], nested: bool) -> tuple[Sequence[str], str] | None:
    """Return the names of the allowed tools and the choice among them, or None for another form."""
    fields = choice.get("allowed_tools") if nested else choice
    if not isinstance(fields, dict) or fields.get("mode") not in ("auto", "required"):
        return None
    entries = fields.get("tools")
    names = [_name(each, nested) for each in entries] if isinstance(entries, list) else []
    return ([name for name in names if name], fields["mode"]) if names and all(names) else None


def _name(entry: Any, nested: bool) -> str | None:
    """Return the name in a tool or in a choice of one, or None for another form."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    fields = entry.get(kind) if nested and kind in KINDS else entry
    name = fields.get("name") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


@lru_cache(maxsize=64)
def _matcher(syntax: str, definition: str) -> Any:
    """Return a matcher of texts at its start, over bytes."""
    from llguidance import LLMatcher, LLTokenizer

    of = LLMatcher.grammar_from_lark if syntax == "lark" else LLMatcher.grammar_from_regex
    return LLMatcher(LLTokenizer("byte"), of(definition), log_level=0)
