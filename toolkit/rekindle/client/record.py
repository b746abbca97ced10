"""Record of one request: messages of the engine about it, its outcome, and its display in a cell."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.client.output import GrowingOutput
from rekindle.client.submission import Submission
from rekindle.core.errors import RequestCancelled, WeightsChanged
from rekindle.core.messages import Rejected, Started, Text
from rekindle.core.request.activations.capture import Captured
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.tokens import EndReason, TokenLogprob
from rekindle.core.words import quantity, seconds
from rekindle.formats.response import Reading
from rekindle.results.facts.figures import Standing, Timings, Usage
from rekindle.results.generation import Generation, ids_in_words, text_html
from rekindle.results.parsing import parse, parse_response
from rekindle.results.response_card import images_html


class Record:
    """State and output of one request. The engine's thread writes; any thread may read.

    The first reader of `outcome` parses the answer, so the engine's thread spends no time on parsing.

    Attributes:
        output: the output so far.
        pieces: the pieces of the output; closed once the request has ended.
        synthetic: whether it is a load to measure, which is in no statistics.
        cancelling: whether the caller has cancelled the request.
        capturing: whether the engine has finished the request, and `capture` is still to come.
    """

    def __init__(self, submission: Submission):
        self._submission = submission
        self.output = GrowingOutput(submission.params, submission.output_prefix)
        self._reading = threading.Lock()
        self.pieces = self.output.pieces
        self.synthetic = submission.synthetic
        self.cancelling = self.capturing = False
        self._started: tuple[Started, float] | None = None
        self._outcome: Generation | Exception | None = None
        self._raised_at: TracebackType | None = None

    @property
    def prefix_tokens(self) -> int:
        """Number of leading tokens of the output that were set before; they are in the first piece."""
        return len(self._submission.output_prefix.token_ids)

    def deliver(self, message: Started | Rejected | Text) -> None:
        """Record a message of the engine about the request."""
        match message:
            case Text(end=end):
                self.output.grow(message)
                if end == "cancelled":
                    self.fail(RequestCancelled("the request was cancelled"))
                elif end is not None:
                    self._finish(message)
            case Started():
                self._started = (message, self.elapsed())
            case Rejected(_, error):
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Fail the request with an error, if it has not ended."""
        if not self.done:
            self._outcome, self._raised_at = error, error.__traceback__
            self.pieces.close()

    @property
    def done(self) -> bool:
        """True if the request has ended: finished, failed or cancelled."""
        return self.pieces.closed

    @property
    def generated(self) -> int:
        """Number of output tokens so far."""
        return self.output.generated

    @property
    def cached(self) -> CachedTokens:
        """Number of prompt tokens found in the prefix cache, by tier; 0 before the request starts."""
        return self._started[0].cached if self._started else CachedTokens()

    @property
    def outcome(self) -> Generation | Exception | None:
        """Generation of a finished request, or the error of a failed or cancelled one; None before the end."""
        reader = self._submission.reader
        if reader is not None and isinstance(self._outcome, Generation) and self._outcome.response is None:
            with self._reading:
                if self._outcome.response is None:
                    self._outcome = self._with_response(self._outcome)
        return self._outcome

    @property
    def error(self) -> Exception | None:
        """Error of a failed or cancelled request; None otherwise."""
        return self._outcome if isinstance(self._outcome, Exception) else None

    @property
    def generation(self) -> Generation | None:
        """Generation of a finished request; None otherwise."""
        outcome = self.outcome
        return outcome if isinstance(outcome, Generation) else None

    def mean_state(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the mean hidden state of a finished request with pooling, shape (hidden,), float64."""
        return self.output.mean_state()

    def token_states(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the hidden state of each token of a finished request for them, shape (tokens, hidden), float64."""
        return self.output.token_states()

    def so_far(self) -> Generation:
        """Return the generation, or the partial generation of an unfinished request with finish reason "cancelled"."""
        return self.generation or self._with_response(self._with_parsed(self._generation_so_far("cancelled")))

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt; empty before the request starts."""
        return () if self._started is None else self._started[0].prompt

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...]:
        """Log-probabilities of the prompt so far, as in `Generation`; complete with the first piece."""
        return tuple(self.output.prompt_logprobs)

    def reading(self) -> Reading | None:
        """Return a new parser of the answer; None before the request starts, or for an answer of plain text."""
        reader = self._submission.reader
        return None if reader is None or self._started is None else reader(self._started[0].prompt)

    def result(self) -> Generation:
        """Return the generation of a request that has ended, or raise its error."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        outcome = self.outcome
        if isinstance(outcome, Generation):
            return outcome
        assert outcome is not None, "a request that has ended has an outcome"
        raise outcome.with_traceback(self._raised_at)

    @property
    def standing(self) -> Standing:
        """Current progress in numbers, at a cost independent of the request's length."""
        prompt_tokens = len(self._started[0].prompt) if self._started else None
        return Standing(self._word(), prompt_tokens, self.generated, self.elapsed())

    @property
    def state(self) -> str:
        """Current progress as text, with the error of a failed request."""
        failure = self._failure()
        return self._progress() if failure is None else f"{self._progress()}: {failure}"

    @property
    def prompt(self) -> str:
        """Prompt for displays: its text, or the last user message of a conversation; empty for token ids."""
        return self._submission.label or ""

    @property
    def _images(self) -> Sequence[Any]:
        """Images of the prompt."""
        return () if self._submission.origin is None else self._submission.origin.images

    @property
    def facts(self) -> dict[str, str | None]:
        """Facts of an unfinished request for its card, by label."""
        facts: dict[str, str | None] = {}
        if self._started:
            started, queued = self._started
            usage = Usage(len(started.prompt), self.generated, image_tokens=started.image_tokens)
            facts |= usage.texts(started.cached, len(self._images))
            facts["queued"] = seconds(queued)
        if self.output.first_token:
            facts["first token after"] = seconds(self.output.first_token)
        return facts

    def preview(self) -> markup.Bundle:
        """Return the display of the request: its generation, or the output so far."""
        if (generation := self.generation) is not None:
            return generation._repr_mimebundle_()
        text = self.pieces.joined()[0]
        return markup.bundle(f"{text}\n[{self.state}]" if text else f"[{self.state}]", self.card("Generation"))

    def card(self, kind: str) -> str:
        """Return the HTML card of the request, with `kind` as the name of the object in its title."""
        if (generation := self.generation) is not None:
            return generation.card(kind)
        failure = self._failure()
        why = "" if failure is None else markup.passage(str(failure))
        text, token_ids, logprobs = self.pieces.joined()
        body = text_html(text, ids_in_words(token_ids), logprobs)
        prompt = markup.prompt_line(self.prompt) + images_html(self._images)
        return markup.card(kind, self._progress(), prompt, body, why, markup.facts(self.facts))

    def _progress(self) -> str:
        generated = quantity(self.generated, "token")
        return f"{self._word()}, {generated}" if self._failure() is None else f"failed after {generated}"

    def _word(self) -> str:
        match self._outcome:
            case None:
                return "cancelling" if self.cancelling else "running" if self._started else "waiting"
            case Generation(finish_reason=reason):
                return f"ended: {reason}"
            case RequestCancelled():
                return "cancelled"
            case _:
                return "failed"

    def _failure(self) -> Exception | None:
        """Return the error of a failed request; None if the request runs, finished or was cancelled."""
        match self._outcome:
            case None | Generation() | RequestCancelled():
                return None
            case error:
                return error

    def _with_response(self, generation: Generation) -> Generation:
        """Return a generation with the response parsed from the pieces so far."""
        reading = self.reading()
        if reading is None:
            return generation
        for piece in tuple(self.pieces.items):
            reading.push(piece.text, piece.token_ids)
        response, _ = reading.finish()
        usage = replace(generation.usage, reasoning_tokens=reading.reasoning_tokens())
        generation = replace(generation, response=response, usage=usage)
        answer = None if self._submission.params.constraint is None else self._submission.params.constraint.answer
        if answer is None:
            return generation
        value, why = parse_response(answer, response, generation.finish_reason, generation.stopped_by)
        return replace(generation, constraint=answer.kind, parsed=value, unparsed=why)

    def _finish(self, last: Text) -> None:
        assert last.end is not None
        generation = replace(
            self._generation_so_far(last.end),
            stopped_by=last.stopped_by,
            cut=last.cut,
            end_token=last.end_token,
            repeats_at=last.repeats_at,
        )
        generation, capturing = self._with_parsed(generation), self._submission.capturing
        if capturing is None:
            self._end(generation)
        else:
            self.capturing, end = True, partial(self._captured, generation)
            capturing.begin(self._submission.params, generation.prompt_token_ids, generation.token_ids, end)

    def _captured(self, generation: Generation, captured: Captured | Exception) -> None:
        """End a finished request with its captured activations. Called on any thread."""
        from rekindle.results.inspection.activations import Activations  # few requests have them

        drawn_by = {version for version, _ in generation.weights_version}
        if isinstance(captured, Exception):
            self.fail(captured)
        elif captured.version is not None and drawn_by != {captured.version}:
            self.fail(
                WeightsChanged(
                    "update_weights replaced the weights before all activations were computed: generate again, and "
                    "await the answer first"
                )
            )
        elif not self.done:
            choice = captured.texts, captured.layers, captured.parts, captured.states
            activations = Activations.of(generation.token_ids, *choice, depth=captured.depth)
            self._end(replace(generation, activations=activations))

    def _end(self, generation: Generation) -> None:
        self._outcome = generation
        self.pieces.close()

    def _generation_so_far(self, end: EndReason) -> Generation:
        (text, token_ids, logprobs), total = self.pieces.joined(), self.elapsed()
        params = self._submission.params
        started, queued = self._started or (Started(0, (), None, CachedTokens()), total)
        return Generation(
            text=text,
            token_ids=token_ids,
            finish_reason=end,
            stopped_by=None,
            logprobs=None if params.logprobs is None else logprobs,
            prompt_logprobs=None if params.prompt_logprobs is None else tuple(self.output.prompt_logprobs),
            prompt_token_ids=started.prompt,
            seed=started.seed if params.temperature > 0 else None,
            usage=Usage(len(started.prompt), len(token_ids), image_tokens=started.image_tokens),
            timings=Timings(queued, self.output.first_token or total, total),
            cached=started.cached,
            begun=min(len(self._submission.output_prefix.token_ids), len(token_ids)),
            origin=self._submission.origin,
            weights_version=self.output.weights_version,
            prompt=self._submission.label,
        )

    def _with_parsed(self, generation: Generation) -> Generation:
        """Return a generation with `parsed` or `unparsed` set, if its output is constrained."""
        constraint = self._submission.params.constraint
        if constraint is None or constraint.answer is not None:  # an answer beside calls is known with the response
            return generation
        value, why = parse(constraint, generation.text, generation.finish_reason, generation.stopped_by)
        return replace(generation, constraint=constraint.kind, parsed=value, unparsed=why)

    def elapsed(self) -> float:
        """Return the seconds since submission."""
        return perf_counter() - self.output.submitted
