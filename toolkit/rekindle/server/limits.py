"""Bounds on request bodies and on buffers for clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server.

    Attributes:
        body_bytes: the largest request body, in bytes.
        body_seconds: the longest time to receive a body, in seconds.
        prompts: the most prompts in one body; also bounds the prompts times `n`, and the texts to embed.
        unread: the most chunks of a stream buffered for a slow client. One more cancels its request.
        unread_seconds: the longest time, in seconds, a stream waits for a client to read.
        first_seconds: the time, in seconds, until a stream begins without an event.
        quiet_seconds: the time, in seconds, until a silent stream has a ping.
    """

    body_bytes: int = 32 << 20
    body_seconds: float = 60.0
    prompts: int = 2048
    unread: int = 1024
    unread_seconds: float = 60.0
    first_seconds: float = 2.0
    quiet_seconds: float = 15.0
