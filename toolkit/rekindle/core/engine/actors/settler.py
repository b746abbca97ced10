"""The settler actor: reads back the outputs of dispatched ticks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import jax
import numpy as np
from anyio import to_thread

from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.memory import is_out_of_memory
from rekindle.core.device.outputs import NONE_LEFT, NOT_FINITE
from rekindle.core.device.packing import unpack_score
from rekindle.core.errors import ConstraintFailed, LogitsNotFinite, OutOfMemory, RekindleError
from rekindle.core.messages import Dispatched, Message, Settled, StateLost
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.tokens import StateSum, TokenLogprob
from rekindle.core.scheduler.limits import EngineLimits


class Settler:
    """The settler actor: waits for each tick's outputs, in order, in a worker thread.

    Args:
        limits: resolved settings, for messages.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._ended = 0.0  # the end of the last tick, in seconds of `perf_counter`
        self._losses = 0  # number of losses of the device state that ticks in flight have shown

    async def handle(self, message: Message) -> list[Message]:
        """Answer Dispatched with Settled; with StateLost before it, if the device had no memory for the tick."""
        if not isinstance(message, Dispatched):
            raise wrong_receiver("settler", message)
        if message.losses < self._losses:  # dispatched behind the tick that failed, over the state that it left
            return [Settled(message.tick, (), losses=self._losses)]
        if message.error is not None:
            return [self._failed(message, message.losses, message.error)]
        try:
            results = await to_thread.run_sync(with_overrides, _read, message, abandon_on_cancel=True)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._losses = message.losses + 1
            return [StateLost(message.losses), self._failed(message, self._losses, error)]
        before, self._ended = self._ended, perf_counter()
        began = max(before, message.began)
        return [
            replace(
                results, rows=message.rows, unready=message.unready, seconds=self._ended - began, gap=began - before
            )
        ]

    def _failed(self, tick: Dispatched, losses: int, error: Exception) -> Settled:
        """Return the results of a tick that the device had no memory for."""
        failures = dict.fromkeys(tick.needing, out_of_memory(self._limits, error))
        return Settled(tick.tick, (), losses=losses, failures=failures)


def out_of_memory(limits: EngineLimits, error: Exception) -> OutOfMemory:
    """Return the error of the requests in a tick that the device had no memory for."""
    reason = str(error).partition("\n")[0]
    return OutOfMemory(
        f"out of memory: the device has no room for a step of this request ({reason:.200}). The "
        f"session goes on. Open it with a lower max_prefill_tokens (now {limits.max_prefill_tokens:,}), max_running "
        f"({limits.max_running:,}) or pool_bytes ({limits.pool.bytes:,}), or close other users of the device"
    )


def _read(tick: Dispatched) -> Settled:
    if tick.awaited is not None:
        jax.block_until_ready(tick.awaited)
    if tick.outputs is None:
        return Settled(tick.tick, (), losses=tick.losses)
    most = max((sample.most for sample in tick.sample_rows), default=1)
    tokens: list[list[int]] = np.asarray(tick.outputs.tokens)[:, :most].tolist()
    sampled = tuple(
        (sample.request_id, token) for sample in tick.sample_rows for token in tokens[sample.row] if token >= 0
    )
    logprobs, prompt_logprobs, sums = _logprobs(tick, tokens), dict(_prompt_logprobs(tick)), dict(_sums(tick))
    failures = {
        sample.request_id: _failure_of(token)
        for sample in tick.sample_rows
        for token in tokens[sample.row]
        if token in (NOT_FINITE, NONE_LEFT)
    }
    unscored = [of for of, scores in prompt_logprobs.items() if any(math.isnan(score.logprob) for score in scores)]
    failures |= {request_id: _not_finite("log-probabilities of the prompt") for request_id in unscored}
    unsummed = [request_id for request_id, each in sums.items() if np.isnan(each.values).any()]
    failures |= {request_id: _not_finite("hidden states of the prompt") for request_id in unsummed}
    steps = max((sum(token >= 0 for token in tokens[sample.row]) for sample in tick.sample_rows), default=1)
    proposals = _proposals(tick, tokens)
    return Settled(
        tick.tick, sampled, logprobs, prompt_logprobs, tick.losses, sums, failures, proposals=proposals, steps=steps
    )


def _proposals(tick: Dispatched, tokens: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the guess after the newest token of each request."""
    if tick.outputs.proposals is None:
        return {}
    guesses = np.asarray(tick.outputs.proposals).tolist()
    return {sample.request_id: guesses[sample.row] for sample in tick.sample_rows if tokens[sample.row][0] >= 0}


def _failure_of(code: int) -> RekindleError:
    """Return the error of a request with an error code in place of its token."""
    if code == NOT_FINITE:
        return _not_finite("logits of the next token")
    return ConstraintFailed(
        "no token is left to choose: all are banned by allowed_token_ids, bad_words, logit_bias, min_tokens or the "
        "session's logits_processor. Relax one of them"
    )


def _not_finite(numbers: str) -> LogitsNotFinite:
    return LogitsNotFinite(
        f"expected finite numbers, got NaN or infinity among the {numbers}. The usual causes are weights that diverged "
        "in training, a damaged checkpoint, and a logits_processor that divides by 0. The session goes on: give sound "
        "weights to update_weights, or open it anew"
    )


def _logprobs(tick: Dispatched, tokens: Sequence[Sequence[int]]) -> dict[int, tuple[TokenLogprob, ...]]:
    scores: dict[int, tuple[TokenLogprob, ...]] = {}
    for sample in tick.sample_rows:
        if (count := sample.logprobs) is not None:
            pairs = zip(np.asarray(tick.outputs.scores)[sample.row], tokens[sample.row], strict=False)
            new = [unpack_score(row, token, count) for row, token in pairs if token >= 0]
            scores[sample.request_id] = (*scores.get(sample.request_id, ()), *new)
    return scores


def _prompt_logprobs(tick: Dispatched) -> Iterator[tuple[int, tuple[TokenLogprob, ...]]]:
    for place in tick.score_rows:
        scoring = place.scoring
        rows = np.asarray(tick.outputs.prompt_scores)[place.row : place.row + len(scoring.tokens)]
        pairs = zip(rows, scoring.tokens, strict=True)
        yield place.request_id, tuple(unpack_score(row, token, scoring.alternatives) for row, token in pairs)


def _sums(tick: Dispatched) -> Iterator[tuple[int, StateSum]]:
    for place in tick.sum_rows:
        if place.apart:
            values = np.asarray(tick.outputs.states)[place.row : place.row + place.count]
        else:
            values = np.asarray(tick.outputs.sums)[place.row]
        yield place.request_id, StateSum(place.count, values.copy())
