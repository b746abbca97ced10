"""The bounds of what a client may send, and of what is kept for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a server.

    Attributes:
        body_bytes: of a request's body.
        body_seconds: that a client may take to send it.
        prompts: in one body; also the prompts times the draws of each, and the texts to embed.
        unread: chunks of a stream that are kept for a client that reads more slowly than the model writes. With one
            more, its request is cancelled.
        unread_seconds: that a client may read nothing while a stream waits for it.
    """

    body_bytes: int = 32 << 20
    body_seconds: float = 60.0
    prompts: int = 2048
    unread: int = 1024
    unread_seconds: float = 60.0
