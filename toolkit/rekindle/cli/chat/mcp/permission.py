"""Permission of a person for calls of tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rekindle.cli.chat.lines import Lines
from rekindle.cli.chat.mcp.visible import visible
from rekindle.cli.chat.screen import Screen
from rekindle.core.concurrency.waits import Waits, WaitStep
from rekindle.core.words import one_line
from rekindle.tools.calling import ToolFailed, ToolOutput
from rekindle.tools.content import as_text
from rekindle.tools.mcp.clients import ClientTools
from rekindle.tools.sources import ToolSource
from rekindle.tools.tool import Tool

QUESTION: Final = "run it? [y]es, [n]o, [a]lways for this tool: "
LONGEST: Final = 1000
"""The most characters of a result on the screen."""


class Permission:
    """Shows calls before they run, and asks for permission.

    Args:
        asks: whether to ask; otherwise all calls run.
    """

    def __init__(self, lines: Lines, screen: Screen, *, asks: bool):
        self._lines, self._screen, self._asks = lines, screen, asks
        self._always: set[str] = set()

    def allows(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Show a whole call, and return whether it may run."""
        text = ", ".join(f"{_word(name)}={value!r}" for name, value in arguments.items())
        self._show(f"{_word(tool.name)}({text}), a tool of {_word(tool.owner)}")
        if not self._asks or tool.name in self._always:
            return True
        while (answer := self._lines.ask(QUESTION).strip().lower()) not in ("y", "yes", "n", "no", "a", "always", ""):
            self._screen.show(f"{answer!r} is no answer")
        if answer.startswith("a"):
            self._always.add(tool.name)
        return answer.startswith(("a", "y"))

    def show_outcome(self, outcome: Any) -> None:
        """Show the result of a call, or its error."""
        content = as_text(outcome.content) if isinstance(outcome, ToolOutput) else f"error: {outcome}"
        self._show(one_line(f"→ {content}", LONGEST))

    def _show(self, text: str) -> None:
        show = self._screen.show if self._lines.interactive else self._screen.note
        show(visible(text))


def _word(name: str) -> str:
    """Return a name on one line, with invisible characters spelled out."""
    return name if name.isprintable() else repr(name)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """Call with permission of a person. Its outcome is the result of the call, or the refusal."""

    permission: Permission
    tool: Tool
    arguments: Mapping[str, Any]
    step: WaitStep

    async def awaited(self) -> Any:
        """Ask, which blocks, and await the call."""
        return self._show(await self.step.awaited()) if self._is_allowed else self._refusal

    def blocked(self) -> Any:
        """Ask, and run the call."""
        return self._show(self.step.blocked()) if self._is_allowed else self._refusal

    @property
    def _is_allowed(self) -> bool:
        return self.permission.allows(self.tool, self.arguments)

    @property
    def _refusal(self) -> ToolFailed:
        return ToolFailed(f"the user did not allow this call of {self.tool.name}")

    def _show(self, outcome: Any) -> Any:
        self.permission.show_outcome(outcome)
        return outcome


class AskedTools(ToolSource):
    """Tools of a server whose calls need permission. After a change of the server's list, it is read again."""

    def __init__(self, tools: ClientTools, permission: Permission):
        self.name, self.tools = tools.name, None
        self._tools, self._permission = tools, permission

    def wait_listed(self) -> Waits[Sequence[Tool]]:
        """Return the tools, as in `ToolSource`."""
        tools = yield from self._tools.wait_listed()
        self.tools = [self._with_permission(tool) for tool in tools]
        return self.tools

    def _with_permission(self, tool: Tool) -> Tool:
        begin = tool.begin
        assert begin is not None, "a server calls its tools"
        return replace(tool, begin=lambda arguments: AskedCall(self._permission, tool, arguments, begin(arguments)))
