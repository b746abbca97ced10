"""What is known of one request: what the engine said of it, how it ended, and what a cell shows of that."""

import threading
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from rekindle.client.submission import Submission
from rekindle.core import markup
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import RequestCancelled
from rekindle.core.messages import Rejected, Started, Text
from rekindle.core.request.figures import CachedTokens, Standing, Timings, Usage
from rekindle.core.request.tokens import EndReason, Piece, TokenLogprob
from rekindle.core.text.response import Reading
from rekindle.results.generation import Generation, generation_html, ids_in_words, text_html
from rekindle.results.parsing import parse


class Record:
    """The record of one request. The engine's thread writes it, and any thread may read it.

    An answer is taken apart by who asks for it first, so that this costs the engine nothing.

    Attributes:
        pieces: what has come so far; closed once the request has ended.
        cancelling: whether its caller has asked for its end.
        first_token: seconds that it had waited when its first token came; None until then.
        last_token: the same of the last token that has come.
    """

    def __init__(self, submission: Submission):
        self._submission = submission
        self._reading = threading.Lock()
        self.pieces: Feed[Piece] = Feed()
        self.cancelling = False
        self._submitted = perf_counter()
        self._started: tuple[Started, float] | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self._generated = 0
        self._prompt_logprobs: list[TokenLogprob | None] = [None] * max(1, submission.params.prompt_logprobs_from)
        self._states: tuple[int, np.ndarray[Any, np.dtype[np.float64]]] | None = None
        self._outcome: Generation | Exception | None = None
        self._raised_at: TracebackType | None = None

    def deliver(self, message: Started | Rejected | Text) -> None:
        """Take in what the engine says of the request."""
        match message:
            case Started():
                self._started = (message, self.elapsed())
            case Rejected(_, error):
                self.fail(error)
            case Text():
                self._prompt_logprobs += message.prompt_logprobs
                if message.states is not None:
                    count, total = self._states or (0, np.zeros(len(message.states.values)))
                    self._states = count + message.states.count, total + message.states.values
                if message.token_ids or message.text:
                    self._grow(message)
                if message.end == "cancelled":
                    self.fail(RequestCancelled("the request was cancelled"))
                elif message.end is not None:
                    self._finish(message)

    def fail(self, error: Exception) -> None:
        """End the request with an error, if it has not ended."""
        if not self.done:
            self._outcome, self._raised_at = error, error.__traceback__
            self.pieces.close()

    @property
    def done(self) -> bool:
        """Tell whether the request ended, well or not."""
        return self.pieces.closed

    @property
    def begins(self) -> bool:
        """Tell whether the next tokens are those that were given, which come before anything is generated."""
        return self._generated < len(self._submission.output_prefix.token_ids)

    @property
    def generated(self) -> int:
        """The number of tokens that have come."""
        return self._generated

    @property
    def outcome(self) -> Generation | Exception | None:
        """The generation, or the error of a request that failed; None as long as the request has not ended."""
        reader = self._submission.reader
        if reader is not None and isinstance(self._outcome, Generation) and self._outcome.response is None:
            with self._reading:
                if self._outcome.response is None:
                    self._outcome = self._read(self._outcome)
        return self._outcome

    @property
    def error(self) -> Exception | None:
        """The error of a request that failed or was cancelled."""
        return self._outcome if isinstance(self._outcome, Exception) else None

    @property
    def generation(self) -> Generation | None:
        """The generation, if the request ended well."""
        outcome = self.outcome
        return outcome if isinstance(outcome, Generation) else None

    def mean_state(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the mean of the hidden states that the request asked for, (hidden,), once it has ended well."""
        assert self._states is not None, "a request with a pooling gets hidden states"
        count, total = self._states
        return total / count

    def so_far(self) -> Generation:
        """Return the generation or, of a request that has none, what has come of it, as if it were cancelled now."""
        return self.generation or self._read(self._with_meaning(self._made("cancelled")))

    def reading(self) -> Reading | None:
        """Return a new reading of the answer; None if its prompt is not known yet, or nothing is to be taken apart."""
        reader = self._submission.reader
        return None if reader is None or self._started is None else reader(self._started[0].prompt)

    def result(self) -> Generation:
        """Return the generation of a request that has ended, or raise why it failed."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        outcome = self.outcome
        if isinstance(outcome, Generation):
            return outcome
        assert outcome is not None, "a request that has ended has an outcome"
        raise outcome.with_traceback(self._raised_at)

    @property
    def standing(self) -> Standing:
        """The state of the request now. This costs the same however long the request is."""
        prompt_tokens = len(self._started[0].prompt) if self._started else None
        return Standing(self._word(), prompt_tokens, self._generated, self.elapsed())

    @property
    def state(self) -> str:
        """The state of the request now, in words, and why it failed."""
        failure = self._failure()
        return self._progress() if failure is None else f"{self._progress()}: {failure}"

    @property
    def known(self) -> dict[str, str | None]:
        """The facts that a cell shows beside the text, as long as the request has not ended."""
        known: dict[str, str | None] = {}
        if self._started:
            started, queued = self._started
            known |= Usage(len(started.prompt), self._generated).said(started.cached)
            known["queued"] = markup.seconds(queued)
        if self.first_token:
            known["first token after"] = markup.seconds(self.first_token)
        return known

    def shown(self) -> markup.Bundle:
        """Return what a cell shows of the request: the generation, or what has come so far."""
        if (made := self.generation) is not None:
            return made._repr_mimebundle_()
        text = self._so_far()[0]
        return markup.bundle(f"{text}\n[{self.state}]" if text else f"[{self.state}]", self.card("Generation"))

    def card(self, kind: str) -> str:
        """Return what a cell shows of the request as HTML, under the name of this kind of object."""
        if (made := self.generation) is not None:
            return markup.card(kind, self.state, generation_html(made))
        failure = self._failure()
        why = "" if failure is None else markup.passage(str(failure))
        text, token_ids, logprobs = self._so_far()
        said = text_html(text, ids_in_words(token_ids), logprobs)
        return markup.card(kind, self._progress(), said, why, markup.facts(self.known))

    def _progress(self) -> str:
        generated = markup.quantity(self._generated, "token")
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
        """Return why the request ended neither well nor because somebody cancelled it."""
        match self._outcome:
            case None | Generation() | RequestCancelled():
                return None
            case error:
                return error

    def _so_far(self) -> tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Return the text, the tokens and their log-probabilities that have come."""
        pieces = self.pieces.items
        return (
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.token_ids),
            tuple(logprob for piece in pieces for logprob in piece.logprobs or ()),
        )

    def _read(self, generation: Generation) -> Generation:
        """Return a generation whose answer is taken apart, as far as pieces of it have come."""
        reading = self.reading()
        if reading is None:
            return generation
        for piece in tuple(self.pieces.items):
            reading.push(piece.text, piece.token_ids)
        response, _ = reading.finish()
        usage = replace(generation.usage, reasoning_tokens=reading.reasoning_tokens())
        return replace(generation, response=response, usage=usage)

    def _grow(self, more: Text) -> None:
        given = self.begins  # which come together
        if not given:
            self.last_token = self.elapsed()
            self.first_token = self.first_token or self.last_token
        self._generated += len(more.token_ids)
        logprobs = (self._submission.output_prefix.logprobs or ())[: len(more.token_ids)] if given else more.logprobs
        shown = None if self._submission.params.logprobs is None else logprobs
        self.pieces.put(Piece(more.text, more.token_ids, shown))

    def _finish(self, last: Text) -> None:
        assert last.end is not None
        made = replace(self._made(last.end), stopped_by=last.stopped_by, cut=last.cut, end_token=last.end_token)
        self._outcome = self._with_meaning(made)
        self.pieces.close()

    def _made(self, end: EndReason) -> Generation:
        (text, token_ids, logprobs), total = self._so_far(), self.elapsed()
        params = self._submission.params
        started, queued = self._started or (Started(0, (), None, CachedTokens()), total)
        return Generation(
            text=text,
            token_ids=token_ids,
            finish_reason=end,
            stopped_by=None,
            logprobs=None if params.logprobs is None else logprobs,
            prompt_logprobs=None if params.prompt_logprobs is None else tuple(self._prompt_logprobs),
            prompt_token_ids=started.prompt,
            seed=started.seed if params.temperature > 0 else None,
            usage=Usage(len(started.prompt), len(token_ids)),
            timings=Timings(queued, self.first_token or total, total),
            cached=started.cached,
            begun=min(len(self._submission.output_prefix.token_ids), len(token_ids)),
            origin=self._submission.origin,
        )

    def _with_meaning(self, generation: Generation) -> Generation:
        """Return a generation with what its text means, if it was constrained."""
        constraint = self._submission.params.constraint
        if constraint is None:
            return generation
        value, why = parse(constraint, generation.text, generation.finish_reason, generation.stopped_by)
        return replace(generation, constraint=constraint.kind, parsed=value, unparsed=why)

    def elapsed(self) -> float:
        """Return the seconds since the request was submitted."""
        return perf_counter() - self._submitted
