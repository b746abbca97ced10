"""How a cell shows an answer that was taken apart: the reasoning folded, the calls as a table."""

import json

from rekindle.core import markup
from rekindle.core.text.response import Response, ToolCall

REASONING, TOOL_CALL = "[reasoning] ", "[tool call] "
"""What stands before such parts in text."""


def response_text(response: Response | None) -> str:
    """Return an answer as text, with the names of its parts but for the content; nothing for no answer."""
    if response is None:
        return ""
    parts = [f"{REASONING}{response.reasoning}"] if response.reasoning else []
    parts += [response.content] if response.content else []
    parts += [f"{TOOL_CALL}{call}" for call in response.tool_calls]
    return "\n".join(parts)


def response_line(response: Response | None) -> str:
    """Return an answer in short: its content and its calls, or its reasoning if there is nothing else.

    Nothing is returned if it is content alone, or there is none.
    """
    if response is None or not (response.reasoning or response.tool_calls):
        return ""
    said = [*([response.content] if response.content else []), *map(str, response.tool_calls)]
    return " ".join(said) or f"{REASONING}{response.reasoning}"


def response_html(response: Response | None, tokens: str, called: str = "") -> str:
    """Return an answer as HTML; nothing if it is content alone, or there is none.

    Args:
        tokens: HTML of all of its tokens, or nothing.
        called: HTML of its calls and what came of them; nothing for the calls alone.
    """
    if response is None or not (response.reasoning or response.tool_calls):
        return ""
    later = markup.passage(response.content) + (called or calls_html(response.tool_calls))
    return "".join(
        (
            reasoning_html(response.reasoning or "", folded=bool(later)),
            later,
            markup.folded("tokens", tokens) if tokens else "",
        )
    )


def reasoning_html(reasoning: str, *, folded: bool = True) -> str:
    """Return reasoning behind a line that opens it, or below that line if it is not folded; nothing for none."""
    if not reasoning:
        return ""
    title = f"reasoning, {markup.quantity(len(reasoning.split()), 'word')}"
    shown = f'<div style="opacity:0.75">{markup.passage(reasoning)}</div>'  # paler than what is said to the user
    return markup.folded(title, shown) if folded else f'<div style="margin:0.2em 0;opacity:0.75">{title}</div>{shown}'


def calls_html(calls: tuple[ToolCall, ...]) -> str:
    """Return calls as a table; nothing for none."""
    return markup.table([_row(call) for call in calls], ("function", "arguments")) if calls else ""


def _row(call: ToolCall) -> tuple[str, str]:
    if call.error is not None:
        return call.name or "cannot be read", f"{call.text} ({call.error})"
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return call.name, ", ".join(arguments)
