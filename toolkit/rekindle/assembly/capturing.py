"""Captures of activations: looks at finished answers, for requests that ask for them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rekindle.assembly.looking import FEWER, Looks, Selection
from rekindle.core.concurrency.feed import Feed
from rekindle.core.device.programs.executables import Executables
from rekindle.core.errors import ModelTooLarge, SessionError, WeightsChanged
from rekindle.core.messages import Inspect, Message
from rekindle.core.models.inspection.inputs import Look, LookInputs
from rekindle.core.request.activations.capture import Captured
from rekindle.core.request.activations.changes import changes_of
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Capturing:
    """Captures for the requests of a session, each a look between two ticks after the last token of its request.

    Attributes:
        looks: the looks at sequences of the model.
        executables: the programs of the first lane.
        tokenizer: the tokenizer; None without one.
        ask: sends the engine a question for its ticket, and returns the feed of the answer.
        error: returns the reason for the end of the engine.
    """

    looks: Looks
    executables: Executables
    tokenizer: Tokenizer | None
    ask: Callable[[Callable[[int], Message]], Feed[Any]]
    error: Callable[[], Exception | None]

    def begin(
        self,
        params: SamplingParams,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        end: Callable[[Captured | Exception], None],
    ) -> None:
        """Start the capture of an answer, and return at once. No tick waits for the compilation of its program.

        Args:
            end: called with the capture or an error, on any thread.
        """
        assert params.capture is not None, "only captures are begun"
        looks, ids = self.looks, prompt + output
        choice = Selection.of(params.capture, looks.layers)
        if not output:
            end(
                Captured(
                    choice.layers,
                    choice.parts,
                    np.zeros((choice.states, 0, looks.hidden), np.float32),
                    (),
                    looks.layers,
                )
            )
            return
        shape = looks.shape(len(ids), choice, FEWER)
        changes = changes_of(params.steer, params.patch, len(prompt), (looks.layers, looks.hidden))
        inputs, take = looks.inputs(ids, choice, shape, changes), partial(self._take, choice, len(prompt), output)
        program = self.executables.obtain(shape)
        program.add_done_callback(partial(self._look, shape, inputs, take, end))

    def _look(
        self,
        shape: Look,
        inputs: LookInputs,
        take: Callable[[Any], Captured],
        end: Callable[[Captured | Exception], None],
        program: Future[Any],
    ) -> None:
        """Ask for the look, once its program is ready or has failed."""
        error = program.exception()
        try:
            if error is not None:
                raise error
            answers = self.ask(lambda ticket: Inspect(ticket, shape, inputs, take))
        except Exception as error:  # the session has ended, or the program cannot be compiled
            end(error)
        else:
            answers.when_closed(lambda: end(self._outcome(answers.items)))

    def _outcome(self, answers: Sequence[Any]) -> Captured | Exception:
        """Return the capture in the answer of the engine, or the error of the look."""
        if not answers:
            return self.error() or SessionError("the session ended before the activations were computed")
        outputs, version = answers[0].outputs, answers[0].version
        if isinstance(outputs, Exception):
            error = ModelTooLarge(f"the device has no room for the captured activations: {FEWER}")
            error.__cause__ = outputs
            return error
        if outputs is None:
            return WeightsChanged("sleep() freed the weights before the captured activations were computed: ask again")
        captured: Captured = outputs
        return replace(captured, version=version)

    def _take(self, choice: Selection, prompt: int, output: tuple[int, ...], outputs: Any) -> Captured:
        """Return the activations of an output behind a prompt. Called in a worker thread."""
        states = np.asarray(outputs[0])[: choice.states, prompt : prompt + len(output)].copy()
        return Captured(choice.layers, choice.parts, states, tuple(map(self._text, output)), self.looks.layers)

    def _text(self, token: int) -> str:
        return str(token) if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)
