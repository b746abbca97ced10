"""Answers in the form of Ollama's API, in lines of JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import Part
from rekindle.results.generation import Generation
from rekindle.server.common.answer import AnswerParts
from rekindle.server.common.call import Call
from rekindle.server.common.errors import ApiError, ollama_error
from rekindle.server.common.events import StreamForm
from rekindle.server.ollama.answer import LINES, OllamaHead, call_object, end_of, line, logprobs_of
from rekindle.server.ollama.body import OllamaRequest


class OllamaChunks:
    """Writer of an answer as lines of JSON.

    Args:
        head: the identity of the answer.
        request: the request to answer.
        call: its call of the session.
    """

    content_type = LINES

    def __init__(self, head: OllamaHead, request: OllamaRequest, call: Call):
        self._head, self._request = head, request
        self._parts = AnswerParts(call, one_call=False)
        self._calls = 0

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        lines = self._lines(self._parts.push(piece, record))
        if not self._request.logprobs:
            return [line(each) for each in lines]
        *others, last = lines or [self._object({})]
        return [*(line(each) for each in others), line({**last, **logprobs_of(piece.logprobs, self._request)})]

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        lines = self._lines(self._parts.finish(record))
        return [*(line(each) for each in lines), line({**self._head.of({}), **end_of(generation, self._request)})]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        return []

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return line(ollama_error(error))

    def _lines(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        return [self._object(self._delta(part)) for part in parts if part.text or part.call is not None]

    def _delta(self, part: Part) -> dict[str, Any]:
        if part.call is not None:
            self._calls += 1
            return {"tool_calls": [call_object(self._calls - 1, part.call)]}
        return {"thinking" if part.kind == "reasoning" else "content": part.text}

    def _object(self, part: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._head.of(part), "done": False}


OLLAMA: Final = StreamForm(LINES, b"", lambda error: line(ollama_error(error)))
"""The form of the streams, which have no pings."""
