"""Display of a parsed answer, with the reasoning folded and the tool calls as a table, and of a prompt's images."""

import json
from collections.abc import Sequence
from typing import Any

from rekindle import markup
from rekindle.core.words import quantity
from rekindle.formats.response import Response, ToolCall

REASONING, TOOL_CALL = "[reasoning] ", "[tool call] "
"""Prefixes of reasoning and tool calls in plain text."""
MOST_IMAGES = 8
"""Maximum number of thumbnails of a prompt."""


def response_text(response: Response | None) -> str:
    """Return an answer as text, with a prefix before reasoning and each tool call; empty for None."""
    if response is None:
        return ""
    parts = [f"{REASONING}{response.reasoning}"] if response.reasoning else []
    parts += [response.content] if response.content else []
    parts += [f"{TOOL_CALL}{call}" for call in response.tool_calls]
    return "\n".join(parts)


def response_line(response: Response | None) -> str:
    """Return the content and the tool calls of an answer on one line; its reasoning if it has neither.

    The line is empty for None, and for an answer with nothing but content.
    """
    if response is None or not (response.reasoning or response.tool_calls):
        return ""
    parts = [*([response.content] if response.content else []), *map(str, response.tool_calls)]
    return " ".join(parts) or f"{REASONING}{response.reasoning}"


def images_html(images: Sequence[Any], most: int = MOST_IMAGES, side: int = 128) -> str:
    """Return thumbnails of images, and the number of further images; "" without images.

    Args:
        images: the images, each as an `ImageSource`.
        most: the maximum number of thumbnails.
        side: the most pixels of a side in the page; thumbnails have twice as many, for dense screens.
    """
    if not images:
        return ""
    from rekindle.formats.images.writing import thumbnails  # few prompts have images

    more = markup.note(f"and {quantity(len(images) - most, 'more image')}") if len(images) > most else ""
    return markup.thumbnails(thumbnails(images[:most], 2 * side), side) + more


def content_html(text: str, *, folds: bool = True) -> str:
    """Return the text of an answer as HTML; see `rekindle.results.markdown.answer_html`."""
    from rekindle.results.markdown import answer_html  # the parser takes longer to import than most answers to draw

    return answer_html(text, folds=folds)


def response_html(response: Response | None, tokens: str, calls: str = "") -> str:
    """Return an answer as HTML; empty for None, and for an answer with nothing but content.

    Args:
        tokens: HTML of all its tokens, or empty.
        calls: HTML of the tool calls and their results; empty to show the calls alone.
    """
    if response is None or not (response.reasoning or response.tool_calls):
        return ""
    later = content_html(response.content) + (calls or calls_html(response.tool_calls))
    return "".join(
        (
            reasoning_html(response.reasoning or "", folded=bool(later)),
            later,
            markup.folded("tokens", tokens) if tokens else "",
        )
    )


def reasoning_html(reasoning: str, *, folded: bool = True) -> str:
    """Return reasoning as HTML below a title, folded or not; empty for no reasoning."""
    if not reasoning:
        return ""
    title = f"reasoning, {quantity(len(reasoning.split()), 'word')}"
    body = f'<div style="opacity:0.75">{markup.passage(reasoning)}</div>'  # paler than the content
    return markup.folded(title, body) if folded else f"{markup.note(title)}{body}"


def calls_html(calls: tuple[ToolCall, ...]) -> str:
    """Return tool calls as an HTML table; empty for no calls."""
    return markup.table([_row(call) for call in calls], ("function", "arguments")) if calls else ""


def _row(call: ToolCall) -> tuple[str, str]:
    if call.error is not None:
        return call.name or "cannot be read", f"{call.text} ({call.error})"
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return call.name, ", ".join(arguments)
