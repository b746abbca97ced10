"""Custom tools: their input is a text, perhaps of a grammar."""

from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.text.constraints.parser import parse_bytes
from rekindle.core.text.constraints.recent import LEAST, Recent
from rekindle.formats.responses.grammars.inputs import regex_of_grammar
from rekindle.server.common.fields import Fields

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
    def forced_grammar(self) -> str | None:
        """Lark grammar of required calls; None for recursion, and for an expression (see `function`)."""
        is_forced = self.syntax == "lark" and regex_of_grammar(self.definition) is not None
        return self.definition if is_forced else None

    def function(self, name: str, description: str) -> dict[str, Any]:
        """Return the tool as a function of one text."""
        kind: dict[str, Any] = {"type": "string"}
        if self.syntax == "regex":
            kind["pattern"] = f"^(?:{self.definition})$"
        if self.syntax is not None:
            description = f"{description}\nThe input follows this grammar ({self.syntax}):\n{self.definition}".lstrip()
        parameters = {"type": "object", "properties": {INPUT: kind}, "required": [INPUT]}
        return {"name": name, "description": description, "parameters": parameters}


def read_custom_tool(body: Fields, form: Any, *, nested: bool) -> CustomTool:
    """Return the custom tool with a format of its input; `nested` as in `read_tools`."""
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
            try:
                _matcher(syntax, definition)
            except InvalidRequest as error:
                body.refuse("tools", f"has a grammar that cannot be read: {error}")
        case _:
            body.refuse("tools", f"has a grammar without syntax (lark or regex) and definition: {preview(grammar)}")
    return CustomTool(syntax, definition)


_MATCHERS: Final[Recent[tuple[str, str], Any]] = Recent(1 << 20)
"""The matchers of grammars, within so many characters of grammars."""


def _matcher(syntax: str, definition: str) -> Any:
    """Return the matcher of texts that follow a grammar; raise InvalidRequest if it cannot be parsed."""
    matcher = _MATCHERS.get((syntax, definition))
    if matcher is None:
        matcher = parse_bytes("grammar" if syntax == "lark" else "regex", definition, f"the {syntax} grammar")
        _MATCHERS.put((syntax, definition), matcher, max(LEAST, len(definition)))
    return matcher
