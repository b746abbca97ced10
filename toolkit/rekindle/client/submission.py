"""A request as its caller submits it."""

from collections.abc import Callable
from dataclasses import dataclass

from rekindle.client.drawing import Drawer
from rekindle.core.concurrency.caller import current_caller
from rekindle.core.messages import NO_PREFIX, OutputPrefix, Prompt, Submit
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Pooling
from rekindle.core.text.response import Reading
from rekindle.results.generation import Origin

Reader = Callable[[tuple[int, ...]], Reading]
"""Begins to read the answer to a prompt."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, and what its caller does with the answer.

    Attributes:
        prompt, params, hold, begun, pooling: see `Submit`.
        reader: takes the answer apart; None where there is nothing to take apart.
        origin: makes the branches of the generation.
        drawing: draws the request; None where nobody can look at it.
        progress: whether a wait for the first token draws the program that the engine waits for.
    """

    prompt: Prompt
    params: SamplingParams
    hold: bool = False
    output_prefix: OutputPrefix = NO_PREFIX
    pooling: Pooling | None = None
    reader: Reader | None = None
    origin: Origin | None = None
    drawing: Drawer | None = None
    progress: bool = False

    def message(self, request_id: int) -> Submit:
        """Return the message to the engine, which names the task or thread that runs now as its caller."""
        return Submit(
            request_id, self.prompt, self.params, self.hold, current_caller(), self.output_prefix, self.pooling
        )
