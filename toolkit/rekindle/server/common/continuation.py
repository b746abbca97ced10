"""Continuations of the last message. A parsed answer begins with the message, the server's answer after it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rekindle.client.record import Record
from rekindle.formats.rendering.content_form import text_of
from rekindle.formats.response import Part, Reading, Response
from rekindle.formats.responses.formats import REASONING_KEYS
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call


def reading_of(record: Record, call: Call) -> Reading | None:
    """Return a new parser of an answer, without the continued message; None for an answer of plain text."""
    reading, lengths = record.reading(), _lengths(call)
    return reading if reading is None or not lengths else _NewText(reading, lengths)


def without_continued(generation: Generation, call: Call) -> Generation:
    """Return a generation with the part of the answer after the continued message."""
    response, lengths = generation.response, _lengths(call)
    return generation if response is None or not lengths else replace(generation, response=_cut(response, lengths))


def _lengths(call: Call) -> Mapping[str, int]:
    """Return the characters of the continued message by kind of part; empty if no message is continued."""
    if not call.options.get("continue_final_message") or not isinstance(call.prompt, Sequence):
        return {}
    messages: Any = call.prompt[0] if isinstance(call.prompt[0], Sequence) else call.prompt
    last = messages[-1]
    text = text_of(last)
    reasoning = next((last[key] for key in REASONING_KEYS if isinstance(last.get(key), str)), "")
    return {"content": len(text.lstrip()), "reasoning": len(reasoning.strip())}


def _cut(response: Response, lengths: Mapping[str, int]) -> Response:
    reasoning = (response.reasoning or "")[lengths["reasoning"] :] or None
    return replace(response, content=response.content[lengths["content"] :], reasoning=reasoning)


class _NewText:
    """Parser of an answer, without the continued message.

    Args:
        reading: the parser.
        lengths: the characters of the message by kind of part.
    """

    def __init__(self, reading: Reading, lengths: Mapping[str, int]):
        self._reading, self._lengths = reading, lengths
        self._to_skip = dict(lengths)

    def push(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """See `Reading`."""
        return self._parts(self._reading.push(text, token_ids))

    def finish(self) -> tuple[Response, list[Part]]:
        """See `Reading`."""
        response, parts = self._reading.finish()
        return _cut(response, self._lengths), self._parts(parts)

    def reasoning_tokens(self) -> int:
        """See `Reading`."""
        return self._reading.reasoning_tokens()

    def _parts(self, parts: Sequence[Part]) -> list[Part]:
        result: list[Part] = []
        for part in parts:
            skip = self._to_skip.get(part.kind, 0)
            self._to_skip[part.kind] = max(0, skip - len(part.text))
            if not skip:
                result.append(part)
            elif part.text[skip:]:
                result.append(replace(part, text=part.text[skip:]))
        return result
