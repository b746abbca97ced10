"""Tools and tool choices in bodies, with OpenAI's two forms: nested in chats, flat in responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.server.common.fields import Fields, name_list
from rekindle.server.common.tools.custom import CustomTool, read_custom_tool

KINDS: Final = ("function", "custom")
NAMESPACE: Final = "namespace"
TOOL_SEARCH: Final = "tool_search"
"""A type of tool with parameters that is not a function: it finds further tools."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a body.

    Attributes:
        options: the keywords of the session; empty without tools.
        custom: the custom tools, by their names for the model.
        namespaced: the namespace of each tool in one, and its name there, by its name for the model.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    custom: Mapping[str, CustomTool] = field(default_factory=dict)
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def read_tools(body: Fields, *, nested: bool, later: Sequence[Any] = ()) -> Tools:
    """Take the tools and the tool choice.

    Tools that OpenAI's servers run are left out, with a note, unless the choice names one.

    Args:
        body: the fields of the body.
        nested: whether the fields of a tool are below the name of its type, as in chats.
        later: tools from another place of the body.

    Raises:
        ApiError: a tool is malformed, or the choice requires another one.
    """
    entries, choice = [*(body.take("tools", list) or []), *later], body.any("tool_choice")
    offer = _Offer(body, nested)
    for entry in entries:
        offer.add(entry)
    if isinstance(choice, dict) and choice.get("type") in offer.hosted:
        body.refuse("tool_choice", f"names {preview(choice['type'])}, and this server runs no tools: name a function")
    if offer.hosted:
        body.note(f"tools of the types {name_list(offer.hosted)} are left out: this server runs no tools")
    if not offer.functions:
        if choice not in (None, "auto", "none"):
            body.refuse("tool_choice", "requires tools that the client runs" if offer.hosted else "requires tools")
        return Tools()
    allowed, mode = _choice(body, choice, offer)
    names = [name for name, _ in offer.functions]
    for name in allowed:
        if name not in names:
            body.refuse("tool_choice", f"names a tool that is not in tools: {preview(name)}")
    tools = [function for name, function in offer.functions if not allowed or name in allowed]
    options: dict[str, Any] = {"tools": tools, "tool_choice": mode}
    if mode not in ("auto", "none"):
        required = [mode] if mode in names else allowed or names
        forced = {name: offer.custom[name].forced_grammar for name in required if name in offer.custom}
        grammars = {name: grammar for name, grammar in forced.items() if grammar is not None}
        options |= {"tool_grammars": grammars} if grammars else {}
    return Tools(options, offer.custom, offer.namespaced)


def single_call(one_call: bool) -> dict[str, Any]:
    """Return the session's keyword for answers with at most one call; empty for answers with any number."""
    return {"parallel_tool_calls": False} if one_call else {}


def name_for_model(namespace: str | None, name: str) -> str:
    """Return the name of a tool as the model sees it, after the namespace if it is in one."""
    if namespace is None:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


class _Offer:
    """The tools of a body, entry by entry.

    Args:
        body: the fields of the body, for errors.
        nested: as in `read_tools`.

    Attributes:
        functions: the names of the tools for the model, and the tools in the form of chat templates.
        custom, namespaced: as in `Tools`.
        hosted: the types of the tools that a server would run.
    """

    def __init__(self, body: Fields, nested: bool):
        self.functions: list[tuple[str, dict[str, Any]]] = []
        self.custom: dict[str, CustomTool] = {}
        self.namespaced: dict[str, tuple[str, str]] = {}
        self.hosted: list[str] = []
        self.nested = nested
        self._body = body

    def add(self, entry: Any, namespace: str | None = None, introduction: str = "") -> None:
        """Add a tool, or the tools of a namespace.

        Args:
            entry: the tool.
            namespace: the namespace around it, or None.
            introduction: the text before its description.
        """
        kind = entry.get("type", "function" if self.nested else None) if isinstance(entry, dict) else None
        if kind == NAMESPACE and not self.nested and namespace is None:
            self._add_namespace(entry)
        elif isinstance(kind, str) and kind not in KINDS and _is_hosted(entry) and not self._body.strict:
            self.hosted.append(kind)
        else:
            self._add_function(entry, kind, namespace, introduction)

    def _add_namespace(self, entry: Mapping[str, Any]) -> None:
        """Add the tools of a namespace. The first one is introduced by the description of the namespace."""
        name, tools, description = entry.get("name"), entry.get("tools"), entry.get("description")
        if not isinstance(name, str) or not name or not isinstance(tools, list):
            self._body.refuse("tools", f"has a namespace without a name and a list of tools: {preview(entry)}")
        introduction = f"{name}: {description}\n\n" if isinstance(description, str) and description else ""
        for place, each in enumerate(tools):
            self.add(each, name, "" if place else introduction)

    def _add_function(self, entry: Any, kind: Any, namespace: str | None, introduction: str) -> None:
        fields = entry.get(kind) if self.nested and kind in KINDS else entry
        own: Any = fields.get("name") if isinstance(fields, dict) else None
        if kind not in KINDS or not isinstance(fields, dict) or (not self.nested and not isinstance(own, str)):
            form = "'function': ..." if self.nested else "'name': ..."
            rule = f"must each be {{'type': 'function', {form}}} or of type 'custom'"
            self._body.refuse("tools", f"{rule}, got {preview(entry)}")
        if not isinstance(own, str | None):
            self._body.refuse("tools", f"must each have a text as name, got {preview(own)}")
        name: Any = name_for_model(namespace, own) if isinstance(own, str) else own
        if namespace is not None:
            if any(name == other for other, _ in self.functions):
                self._body.refuse("tools", f"has two tools with the name {preview(name)} for the model: rename one")
            self.namespaced[name] = (namespace, own or "")
        if kind == "custom" and isinstance(name, str):
            self.custom[name] = read_custom_tool(self._body, fields.get("format"), nested=self.nested)
            function = self.custom[name].function(name, introduction + (fields.get("description") or ""))
        else:
            function = {key: value for key, value in fields.items() if key != "type" and value is not None}
            if namespace is not None:
                function["name"] = name
            if introduction:
                function["description"] = (introduction + (fields.get("description") or "")).strip()
        self.functions.append((name, {"type": "function", "function": function}))

    def names_of(self, entry: Any) -> list[str]:
        """Return the names for the model of a chosen tool, or of all tools in a namespace; empty for another form.

        The tool of a namespace may be name_list without it, if no other tool has this name.
        """
        kind = entry.get("type") if isinstance(entry, dict) else None
        fields = entry.get(kind) if self.nested and kind in KINDS else entry
        name = fields.get("name") if isinstance(fields, dict) else None
        if not isinstance(name, str):
            return []
        if kind == NAMESPACE:
            return [flat for flat, (namespace, _) in self.namespaced.items() if namespace == name]
        namespace = fields.get("namespace")
        if isinstance(namespace, str):
            return [name_for_model(namespace, name)]
        alike = [flat for flat, (_, own) in self.namespaced.items() if own == name]
        return alike if len(alike) == 1 and all(name != other for other, _ in self.functions) else [name]


def _is_hosted(entry: Mapping[str, Any]) -> bool:
    """Return True for a tool of another type than a function's, unless it has the fields of a function."""
    return entry["type"] == TOOL_SEARCH or not {"function", "parameters"} & entry.keys()


def _choice(body: Fields, choice: Any, offer: _Offer) -> tuple[Sequence[str], str]:
    """Return the names of the allowed tools, empty for all, and the choice among them."""
    names: Sequence[str] = ()
    match choice:
        case None | "auto" | "none" | "required":
            mode = choice or "auto"
        case {"type": "function" | "custom"} if offer.names_of(choice):
            (mode,) = offer.names_of(choice)
        case {"type": "allowed_tools"} if entry := _allowed(choice, offer):
            names, mode = entry
        case _:
            one = (
                "{'type': 'function', 'function': {'name': ...}}"
                if offer.nested
                else "{'type': 'function', 'name': ...}"
            )
            rule = f"must be auto, none, required, {one} or of type allowed_tools"
            body.refuse("tool_choice", f"{rule}, got {preview(choice)}")
    return names, mode


def _allowed(choice: Mapping[str, Any], offer: _Offer) -> tuple[Sequence[str], str] | None:
    """Return the names of the allowed tools and the choice among them, or None for another form.

    Hosted tools are left out here too; a choice of hosted tools alone is of another form.
    """
    fields = choice.get("allowed_tools") if offer.nested else choice
    if not isinstance(fields, dict) or fields.get("mode") not in ("auto", "required"):
        return None
    entries = fields.get("tools")
    if not isinstance(entries, list):
        return None
    own = [each for each in entries if not (isinstance(each, dict) and each.get("type") in offer.hosted)]
    names = [offer.names_of(each) for each in own]
    return ([name for each in names for name in each], fields["mode"]) if names and all(names) else None
