"""Text of a running request, split into the parts of its answer."""

from collections.abc import Iterable

from rekindle import markup
from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import Part, PartKind, Reading
from rekindle.results.response_card import REASONING, TOOL_CALL, calls_html


class PartReader:
    """Incremental splitter of an answer into parts; an answer without a parser is all content."""

    def __init__(self, record: Record):
        self._record = record
        self._reading: Reading | None = None

    def push(self, pieces: Iterable[Piece]) -> list[Part]:
        """Return the new parts of an answer from its next pieces."""
        parts: list[Part] = []
        for piece in pieces:
            self._reading = self._reading or self._record.reading()
            if self._reading is None:
                parts.append(Part("content", piece.text))
            else:
                parts += self._reading.push(piece.text, piece.token_ids)
        return parts


class GrowingParts:
    """Growing parts in the display of a cell: the end of each text. Reasoning is folded once another part follows."""

    def __init__(self) -> None:
        self._texts: dict[PartKind, str] = {"reasoning": "", "content": "", "tool_call": ""}
        self._before = dict.fromkeys(self._texts, 0)
        self._parts: list[Part] = []

    def take(self, parts: Iterable[Part]) -> None:
        """Append parts. Only the end of each text is kept, except for complete tool calls."""
        for part in parts:
            if part.call is not None:
                self._parts.append(part)
                self._texts["tool_call"] = ""
                continue
            text = self._texts[part.kind] + part.text
            self._texts[part.kind] = text[-markup.TAIL :]
            self._before[part.kind] += len(text) - len(self._texts[part.kind])

    @property
    def text(self) -> str:
        """All parts as text."""
        reasoning, content = self._texts["reasoning"], self._texts["content"]
        return "\n".join(filter(None, (reasoning and f"{REASONING}{reasoning}", content, self._texts["tool_call"])))

    @property
    def html(self) -> str:
        """All parts as HTML."""
        html = {kind: markup.growing(text, self._before[kind]) for kind, text in self._texts.items()}
        calls = tuple(part.call for part in self._parts if part.call is not None)
        if html["reasoning"]:
            later = html["content"] or html["tool_call"] or calls
            thinking = f'<div style="opacity:0.75">{html["reasoning"]}</div>'
            html["reasoning"] = markup.folded("reasoning", thinking) if later else thinking
        return f"{html['reasoning']}{html['content']}{calls_html(calls)}{html['tool_call']}"


class PrintedParts:
    """Parts in the format of a terminal: a new line for each kind, with a prefix unless it is content."""

    def __init__(self) -> None:
        self._kind: PartKind | None = None

    def text_of(self, parts: Iterable[Part]) -> str:
        """Return the text to print for the next parts. A tool call is printed once it is complete."""
        return "".join(self._part_text(part) for part in parts)

    def _part_text(self, part: Part) -> str:
        text = f"{TOOL_CALL}{part.call}" if part.call is not None else part.text
        if not text or (part.kind == "tool_call" and part.call is None):
            return ""
        if self._kind == part.kind and part.call is None:
            return text
        line = "" if self._kind is None else "\n"
        self._kind = part.kind
        return f"{line}{REASONING if part.kind == 'reasoning' else ''}{text}"
