"""Output of one request as it grows: its pieces, the weights of its tokens, and their times."""

from collections.abc import Iterator, Sequence
from itertools import starmap
from time import perf_counter
from typing import Any, overload

import numpy as np

from rekindle.core.concurrency.feed import Feed
from rekindle.core.messages import Text
from rekindle.core.messages.submission import OutputPrefix
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.tokens import Piece, TokenLogprob, first_runs

Fields = tuple[str, tuple[int, ...], tuple[TokenLogprob, ...] | None]
"""The fields of a `Piece`."""


class PieceList(Sequence[Piece]):
    """Pieces made when they are read.

    Their fields are kept as plain tuples. The garbage collector follows objects, not tuples of plain values, and a full
    collection over many objects stops the engine for longer than many ticks.
    """

    def __init__(self, fields: list[Fields]):
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    @overload
    def __getitem__(self, place: int) -> Piece: ...
    @overload
    def __getitem__(self, place: slice) -> list[Piece]: ...
    def __getitem__(self, place: int | slice) -> Piece | list[Piece]:
        if isinstance(place, slice):
            return [Piece(*each) for each in self._fields[place]]
        return Piece(*self._fields[place])

    def __iter__(self) -> Iterator[Piece]:
        return starmap(Piece, self._fields)


class Pieces(Feed[Any]):
    """The feed of a request's pieces. `put` takes the fields of each."""

    @property
    def items(self) -> Sequence[Piece]:
        """All pieces so far."""
        return PieceList(self._items)

    def joined(self) -> tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Return the text, the token ids and the log-probabilities of all pieces so far."""
        fields: list[Fields] = self._items.copy()
        return (
            "".join([text for text, _, _ in fields]),
            tuple([token for _, tokens, _ in fields for token in tokens]),
            tuple([logprob for _, _, logprobs in fields for logprob in logprobs or ()]),
        )


class GrowingOutput:
    """The output of one request so far. The engine's thread writes; any thread may read.

    Attributes:
        pieces: the pieces so far; closed once the request has ended.
        generated: the number of output tokens so far.
        repeats_prefix: whether the next tokens repeat the output prefix of a branch, before any token is generated.
        submitted: the time of submission, by `perf_counter`.
        first_token: seconds from submission to the first token; None before.
        prompt_logprobs: the log-probabilities of the prompt so far.
    """

    def __init__(self, params: SamplingParams, prefix: OutputPrefix):
        self._wants_logprobs, self._prefix = params.logprobs is not None, prefix
        self._runs: list[list[int]] = []
        self._last_token: float | None = None  # by `perf_counter`
        self._states: tuple[int, np.ndarray[Any, np.dtype[np.float64]]] | None = None
        self.pieces = Pieces()
        self.generated = 0
        self.repeats_prefix = len(prefix.token_ids) > 0
        self.submitted = perf_counter()
        self.first_token: float | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = [None] * max(1, params.prompt_logprobs_from)

    @property
    def weights_version(self) -> tuple[tuple[int, int], ...]:
        """The weights of the tokens, as in `Generation`."""
        return tuple((version, count) for version, count in self._runs)

    def mean_state(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the mean hidden state of a finished request with pooling, shape (hidden,), float64."""
        assert self._states is not None, "a finished request with pooling has hidden states"
        count, total = self._states
        return total / count

    def token_states(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the hidden state of each token of a finished request for them, shape (tokens, hidden), float64."""
        assert self._states is not None, "a finished request with pooling has hidden states"
        return self._states[1]

    def arrive(self, now: float) -> float | None:
        """Note the time of new tokens, by `perf_counter`; return the seconds since the ones before, None at first."""
        before, self._last_token = self._last_token, now
        if before is None:
            self.first_token = now - self.submitted
            return None
        return now - before

    def grow(self, more: Text) -> None:
        """Add the tokens and the text of a message."""
        if more.prompt_logprobs:
            self.prompt_logprobs += more.prompt_logprobs
        if more.states is not None:
            count, total = self._states or (0, np.zeros(more.states.values.shape))
            self._states = count + more.states.count, total + more.states.values
        tokens, logprobs = more.token_ids, more.logprobs if self._wants_logprobs else None
        if not tokens and not more.text:
            return
        runs = self._runs
        if self.repeats_prefix:
            logprobs = self._copy(more)
        elif runs and runs[-1][0] == more.weights_version:
            runs[-1][1] += len(tokens)
        else:
            self._add_run(more.weights_version, len(tokens))
            if self.first_token is None:  # nobody has told the time
                self.arrive(perf_counter())
        self.generated += len(tokens)
        self.pieces.put((more.text, tokens, logprobs))

    def _copy(self, more: Text) -> tuple[TokenLogprob, ...] | None:
        """Count the tokens of a branch's prefix, which arrive in one message; return their log-probabilities."""
        count = len(more.token_ids)
        runs = first_runs(self._prefix.weights_version, count)
        for version, tokens in runs:
            self._add_run(version, tokens)
        self._add_run(more.weights_version, count - sum(tokens for _, tokens in runs))
        self.repeats_prefix = self.generated + count < len(self._prefix.token_ids)
        return (self._prefix.logprobs or ())[:count] if self._wants_logprobs else None

    def _add_run(self, version: int, count: int) -> None:
        """Count tokens as drawn by the weights with a number."""
        runs = self._runs
        if runs and runs[-1][0] == version:
            runs[-1][1] += count
        elif count:
            runs.append([version, count])
