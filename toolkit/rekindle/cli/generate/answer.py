"""Generation on the terminal, streamed and timed."""

from dataclasses import dataclass
from time import perf_counter
from typing import Unpack

from rekindle.client.prompts import Messages
from rekindle.core.request.params import SamplingOptions
from rekindle.results.generation import Generation
from rekindle.session.session import Session


@dataclass(frozen=True, slots=True)
class Answer:
    """A generation and its times.

    Attributes:
        generation: the generation.
        first: seconds from the request to its first token; 0 without a token.
        seconds: seconds from the request to its end.
    """

    generation: Generation
    first: float
    seconds: float

    @property
    def tokens(self) -> int:
        """The number of generated tokens."""
        return len(self.generation.token_ids)


def answer(session: Session, prompt: str | Messages, *, show: bool, **sampling: Unpack[SamplingOptions]) -> Answer:
    """Generate from one prompt to the end, and measure the times.

    Args:
        session: the session.
        prompt: the prompt.
        show: whether to stream the text to stdout.
        sampling: the sampling options.
    """
    start, first = perf_counter(), 0.0
    handle = session.submit(prompt, **sampling)
    for piece in handle:
        first = first or perf_counter() - start
        if show and piece.text:
            print(piece.text, end="", flush=True)
    seconds = perf_counter() - start
    if show:
        print(flush=True)
    return Answer(handle.result(), first, seconds)
