"""What all answers have: their head, their usage, and their bytes."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final, Protocol

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.results.generation import Generation
from rekindle.server.refused import Refused

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that tell an answer from others.

    Attributes:
        id: its own.
        created: seconds since 1970.
        model: the name of the model.
    """

    id: str
    created: int
    model: str

    @classmethod
    def new(cls, kind: str, model: str) -> "Head":
        """Return the head of a new answer, whose id begins with its kind."""
        return cls(f"{kind}-{uuid.uuid4().hex}", int(time()), model)

    def of(self, kind: str) -> dict[str, Any]:
        """Return the fields that each object of this kind begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Chunks(Protocol):
    """Writes one answer as chunks of a stream. The choices of it come at the same time, in any order."""

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """Return the events for a piece of a choice; `record` is that of its request."""
        ...

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """Return the events for the end of a choice."""
        ...

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """Return the events for the end of the answer."""
        ...

    def failed(self, why: Refused) -> bytes:
        """Return the last event of an answer that has begun and failed."""
        ...


_LINE_ENDS: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""What JSON has unescaped in its strings, and clients that read events by lines take for the end of one."""


def dumped(value: Any) -> bytes:
    """Return JSON as UTF-8, in one line for whoever reads it; a lone surrogate, which has no bytes, is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return text.encode("utf-8", "backslashreplace")


def event(value: Any) -> bytes:
    """Return an event of a stream, whose data is this value as JSON."""
    return b"data: " + dumped(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """Return an event of a stream that has a name."""
    return f"event: {name}\n".encode() + event(value)


def failed(why: Refused) -> bytes:
    """Return the last event of a completion that has begun and failed."""
    return event(why.body) + DONE


def usage(generations: Sequence[Generation], draws: int) -> dict[str, Any]:
    """Return the tokens of an answer, of which each prompt has so many draws and counts once."""
    prompts = generations[::draws]
    generated = sum(each.usage.completion_tokens for each in generations)
    said = usage_of(sum(each.usage.prompt_tokens for each in prompts), generated)
    return {
        **said,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(each.usage.reasoning_tokens for each in generations)},
    }


def usage_so_far(records: Sequence[Record], draws: int) -> dict[str, Any]:
    """Return the tokens that have come of an answer, as `usage` does, without details, which the end tells."""
    standings = [record.standing for record in records]
    generated = sum(standing.generated for standing in standings)
    return usage_of(sum(standing.prompt_tokens or 0 for standing in standings[::draws]), generated)


def usage_of(prompt: int, generated: int) -> dict[str, Any]:
    """Return the tokens of prompts and answers."""
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def finish_reason(generation: Generation, called: bool = False) -> str:
    """Return why an answer ended, in the words of OpenAI's API; what was cut is told as that whatever it called."""
    if generation.finish_reason == "length":
        return "length"
    return "tool_calls" if called else "stop"
