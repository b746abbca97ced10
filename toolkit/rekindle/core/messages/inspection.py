"""Inspection of a model: computations from its weights, beside the plans."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True)
class Inspect(Message):
    """Run a program over the weights. From the caller to the stepper.

    Attributes:
        ticket: the number shared by the request and its answer.
        key: the key of the program.
        inputs: its arguments after the weights.
    """

    ticket: int
    key: Any
    inputs: Any

    def __str__(self) -> str:
        return f"Inspect: {self.key}"


@dataclass(frozen=True, slots=True)
class Inspected(Message):
    """The outcome of an inspection. From the stepper to the caller.

    Attributes:
        ticket: the number of the question.
        outputs: device arrays; None if the device has no weights at the moment, or an error of the program.
    """

    ticket: int
    outputs: Any

    def __str__(self) -> str:
        return "Inspected"
