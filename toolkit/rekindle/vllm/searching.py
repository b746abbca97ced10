"""Beam search: the likeliest answers, by one request of one token for each beam and step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from rekindle.client.handle import Handle
from rekindle.session.session import Session
from rekindle.vllm.lora.adapters import LoadedAdapters
from rekindle.vllm.lora.request import LoRARequest
from rekindle.vllm.outputs import BeamSearchOutput, BeamSearchSequence, Logprob, by_token
from rekindle.vllm.running import Bar, with_bar
from rekindle.vllm.sampling_params import BeamSearchParams

CANDIDATES: Final = 2
"""Candidates of a step for each beam of the width, so that enough go on where half of them end."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A prompt and the beginning of an answer.

    Attributes:
        tokens: the tokens of both.
        logprobs: the log-probabilities at each position of the answer.
        total: the sum of the log-probabilities of the answer's tokens.
        score: `total` divided by the answer's length to the power of the penalty.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, Logprob], ...] = ()
    total: float = 0.0
    score: float = 0.0

    def extended(self, by: Mapping[int, Logprob], penalty: float) -> Iterator["Beam"]:
        """Yield the beam with each of the next tokens."""
        logprobs = (*self.logprobs, by)
        for token, each in by.items():
            total = self.total + each.logprob
            yield Beam((*self.tokens, token), logprobs, total, total / len(logprobs) ** penalty)


class Search:
    """The search for the answers to one prompt.

    Args:
        prompt: the tokens of the prompt.
        params: the width, the penalty, and whether an end token ends an answer.
        ends: the end tokens of the model.
        lora: the adapter.
        priority: the place of the requests in the queue.

    Attributes:
        beams: the answers that go on, the best first.
        lora: the adapter.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: BeamSearchParams,
        ends: frozenset[int],
        lora: LoRARequest | None,
        priority: int,
    ):
        self.beams = [Beam(tuple(prompt))]
        self.lora, self._params, self._priority = lora, params, priority
        self._ends, self._complete = frozenset() if params.ignore_eos else ends, list[Beam]()

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `session.enqueue` for the next token of each beam."""
        return {
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": CANDIDATES * self._params.beam_width,
            "ignore_eos": True,
            "priority": self._priority,
        }

    def advance(self, steps: Sequence[Mapping[int, Logprob]]) -> None:
        """Extend the beams by the log-probabilities of the token after each, and keep the best ones."""
        longer: list[Beam] = []
        for beam, step in zip(self.beams, steps, strict=True):
            for each in beam.extended(step, self._params.length_penalty):
                (self._complete if each.tokens[-1] in self._ends else longer).append(each)
        self.beams = sorted(longer, key=attrgetter("score"), reverse=True)[: self._params.beam_width]

    def result(self, session: Session) -> BeamSearchOutput:
        """Return the best answers, with their texts."""
        best = sorted([*self._complete, *self.beams], key=attrgetter("score"), reverse=True)
        tokenizer, skips = session.tokenizer, self._params.skip_special_tokens
        return BeamSearchOutput(
            [
                BeamSearchSequence(
                    list(each.tokens),
                    list(each.logprobs),
                    self.lora,
                    each.total,
                    None if tokenizer is None else tokenizer.decode(each.tokens, skips),
                )
                for each in best[: self._params.beam_width]
            ]
        )


def search(
    session: Session, searches: Sequence[Search], steps: int, adapters: LoadedAdapters, salt: str, bar: Bar
) -> None:
    """Advance searches by at most `steps` tokens, all together. An error cancels the requests.

    Args:
        salt: the salt of their cached prefixes.
        bar: as in `with_bar`.
    """
    for _ in with_bar(range(steps), bar, "Beam search"):
        handles: list[Handle] = []
        try:
            for each in searches:
                options = {**each.options, "adapter": adapters.name_of(each.lora), "cache_salt": salt}
                for beam in each.beams:
                    handles.append(session.enqueue_sync(token_ids=beam.tokens, **options))
            steps_of = iter([by_token((handle.result().logprobs or ())[0]) for handle in handles])
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        for each in searches:
            each.advance([next(steps_of) for _ in each.beams])
        if not any(each.beams for each in searches):
            break
