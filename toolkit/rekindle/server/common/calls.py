"""Tool calls in answers, complete and as they come."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rekindle.core.request.checks import preview
from rekindle.core.text.response import CallPiece, Part, ToolCall
from rekindle.server.common.call import Call
from rekindle.server.common.tools.custom import INPUT, CustomTool


def readable_calls(calls: Sequence[ToolCall], one_call: bool) -> list[ToolCall]:
    """Return the calls without a parse error; only the first if `one_call`."""
    valid = [call for call in calls if call.error is None]
    return valid[:1] if one_call else valid


def content_of(text: str, calls: Sequence[ToolCall], request: Call) -> str:
    """Return the content of an answer: its text, and the calls with a parse error.

    It is empty if the answer must be a call: the rest of such an answer is the cut beginning of a further one.
    """
    return "" if request.needs_calls else text + "".join(call.text for call in calls if call.error is not None)


def check_inputs(calls: Sequence[ToolCall], custom: Mapping[str, CustomTool]) -> list[ToolCall]:
    """Return calls with an error for each custom tool whose input is absent or outside its grammar."""
    return [each if (error := _input_error(each, custom)) is None else replace(each, error=error) for each in calls]


def _input_error(call: ToolCall, custom: Mapping[str, CustomTool]) -> str | None:
    if call.error is not None or call.name not in custom:
        return call.error
    text = call.arguments.get(INPUT)
    if not isinstance(text, str):
        return f"expected the argument {INPUT}, got {preview(call.arguments, 200)}"
    return (
        None
        if custom[call.name].accepts(text)
        else f"expected an input of the tool's grammar, got {preview(text, 200)}"
    )


def call_text(call: ToolCall, custom: Mapping[str, CustomTool]) -> str:
    """Return the arguments of a call as JSON, or the input of a custom tool."""
    return str(call.arguments[INPUT]) if call.name in custom else json.dumps(call.arguments, ensure_ascii=False)


class CallProgress:
    """The calls of a stream by pieces. A call in a format without pieces, or of a custom tool, is one piece.

    Args:
        one_call: whether only the first call counts.
        custom: the custom tools by name.

    Attributes:
        complete: the number of complete calls.
    """

    def __init__(self, *, one_call: bool, custom: Mapping[str, CustomTool]):
        self._one_call, self._custom = one_call, custom
        self._numbers: dict[str, int] = {}  # the number of each call by id
        self.complete = 0

    def take(self, part: Part) -> list[tuple[int, CallPiece, bool]]:
        """Return the pieces in a part to write: the number of the call, the piece, and whether it is the first."""
        call = self._checked(part.call)
        pieces: Sequence[CallPiece] = [piece for piece in part.pieces if piece.name not in self._custom]
        is_complete = call is not None and call.error is None
        if call is not None and is_complete and call.id not in self._numbers:
            pieces = [CallPiece(call.id, call.name, call_text(call, self._custom))]
        entries = []
        for piece in pieces:
            is_first = piece.id not in self._numbers
            if is_first and self._one_call and self._numbers:
                continue
            entries.append((self._numbers.setdefault(piece.id, len(self._numbers)), piece, is_first))
        self.complete += call is not None and is_complete and call.id in self._numbers
        return entries

    def text_of(self, part: Part, request: Call) -> str:
        """Return the content in a part: its text, or a malformed call without any piece written."""
        call = self._checked(part.call)
        calls = [] if call is None or call.id in self._numbers else [call]
        return content_of(part.text if part.kind == "content" else "", calls, request)

    def _checked(self, call: ToolCall | None) -> ToolCall | None:
        return None if call is None else check_inputs([call], self._custom)[0]
