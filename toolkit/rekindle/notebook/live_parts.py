"""The text of a request while it grows, each part of an answer for itself."""

from collections.abc import Iterable

from rekindle.client.record import Record
from rekindle.core import markup
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, PartKind, Reading
from rekindle.results.response_card import REASONING, TOOL_CALL, calls_html


class Arriving:
    """The parts of an answer as its pieces arrive; a text that is not taken apart is all content."""

    def __init__(self, record: Record):
        self._record = record
        self._reading: Reading | None = None

    def push(self, pieces: Iterable[Piece]) -> list[Part]:
        """Return the parts that these pieces tell."""
        parts: list[Part] = []
        for piece in pieces:
            self._reading = self._reading or self._record.reading()
            if self._reading is None:
                parts.append(Part("content", piece.text))
            else:
                parts += self._reading.push(piece.text, piece.token_ids)
        return parts


class Growing:
    """The parts that grow, as a cell shows them: the end of each, with reasoning folded once there is more."""

    def __init__(self) -> None:
        self._texts: dict[PartKind, str] = {"reasoning": "", "content": "", "tool_call": ""}
        self._before = dict.fromkeys(self._texts, 0)
        self._parts: list[Part] = []

    def take(self, parts: Iterable[Part]) -> None:
        """Take parts, of whose texts the ends are kept."""
        for part in parts:
            if part.call is not None:
                self._parts.append(part)
                self._texts["tool_call"] = ""
                continue
            text = self._texts[part.kind] + part.text
            self._texts[part.kind] = text[-markup.HEAD :]
            self._before[part.kind] += len(text) - len(self._texts[part.kind])

    @property
    def text(self) -> str:
        """All of it as text."""
        reasoning, content = self._texts["reasoning"], self._texts["content"]
        return "\n".join(filter(None, (reasoning and f"{REASONING}{reasoning}", content, self._texts["tool_call"])))

    @property
    def html(self) -> str:
        """All of it as HTML."""
        shown = {kind: markup.growing(text, self._before[kind]) for kind, text in self._texts.items()}
        calls = tuple(part.call for part in self._parts if part.call is not None)
        if shown["reasoning"]:
            later = shown["content"] or shown["tool_call"] or calls
            thinking = f'<div style="opacity:0.75">{shown["reasoning"]}</div>'
            shown["reasoning"] = markup.folded("reasoning", thinking) if later else thinking
        return f"{shown['reasoning']}{shown['content']}{calls_html(calls)}{shown['tool_call']}"


class PrintedParts:
    """The parts as a terminal shows them: each kind on a line of its own, after its name unless it is content."""

    def __init__(self) -> None:
        self._kind: PartKind | None = None

    def words(self, parts: Iterable[Part]) -> str:
        """Return what is to be printed for these parts. A call is printed once it is complete."""
        return "".join(self._word(part) for part in parts)

    def _word(self, part: Part) -> str:
        text = f"{TOOL_CALL}{part.call}" if part.call is not None else part.text
        if not text or (part.kind == "tool_call" and part.call is None):
            return ""
        if self._kind == part.kind and part.call is None:
            return text
        line = "" if self._kind is None else "\n"
        self._kind = part.kind
        return f"{line}{REASONING if part.kind == 'reasoning' else ''}{text}"
