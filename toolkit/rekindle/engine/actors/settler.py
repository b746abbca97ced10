"""The settler actor: it reads the outputs of dispatched ticks back."""

from collections.abc import Iterator

import numpy as np
from anyio import to_thread

from rekindle.device.jax_settings import under_own_settings
from rekindle.device.packing import unpack_score
from rekindle.messages import Dispatched, Message, Settled
from rekindle.results.tokens import StateSum, TokenLogprob


class Settler:
    """Waits for each tick's outputs, in order, in a worker thread."""

    async def handle(self, message: Message) -> list[Message]:
        """Answer Dispatched with Settled."""
        if not isinstance(message, Dispatched):
            raise TypeError(f"the settler takes Dispatched, got {message!r}")
        return [await to_thread.run_sync(under_own_settings, _read, message, abandon_on_cancel=True)]


def _read(tick: Dispatched) -> Settled:
    if tick.outputs is None:
        return Settled(tick.tick, (), losses=tick.losses)
    tokens = np.asarray(tick.outputs.tokens).tolist()
    sampled = tuple((sample.request_id, tokens[sample.row]) for sample in tick.sampled)
    scores = dict(_logprobs(tick, tokens)), dict(_prompt_logprobs(tick))
    return Settled(tick.tick, sampled, *scores, tick.losses, dict(_sums(tick)))


def _logprobs(tick: Dispatched, tokens: list[int]) -> Iterator[tuple[int, TokenLogprob]]:
    for sample in tick.sampled:
        if sample.logprobs is not None:
            row = np.asarray(tick.outputs.scores)[sample.row]
            yield sample.request_id, unpack_score(row, tokens[sample.row], sample.logprobs)


def _prompt_logprobs(tick: Dispatched) -> Iterator[tuple[int, tuple[TokenLogprob, ...]]]:
    for scored in tick.scored:
        scoring = scored.scoring
        rows = np.asarray(tick.outputs.prompt_scores)[scored.row : scored.row + len(scoring.tokens)]
        pairs = zip(rows, scoring.tokens, strict=True)
        yield scored.request_id, tuple(unpack_score(row, token, scoring.alternatives) for row, token in pairs)


def _sums(tick: Dispatched) -> Iterator[tuple[int, StateSum]]:
    for summed in tick.summed:
        values = np.asarray(tick.outputs.sums)[summed.row]
        yield summed.request_id, StateSum(summed.count, values.copy())
