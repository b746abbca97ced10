"""Hidden states of all tokens of texts, of encoders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import Shape
from rekindle.client.calls.prompts import label_of
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.formats.checkpoints.heads import Floats
from rekindle.results.facts.settings import SamplingParams
from rekindle.scoring.computing import ScoringBar, wait_all
from rekindle.scoring.pairs import note_cuts


def probabilities_of(logits: Floats) -> Floats:
    """Return the softmax of each row of logits."""
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Floats = exponents / exponents.sum(-1, keepdims=True)
    return probabilities


def token_states(
    requests: Requests, texts: Sequence[str], several: bool, cache_salt: str, bar: ScoringBar
) -> Waits[list[tuple[tuple[int, ...], Floats]]]:
    """Return the tokens of each text, and their hidden states, (tokens, hidden)."""
    __tracebackhide__ = True
    requests.engine.check()
    salt = checks.text("cache_salt", cache_salt, LONGEST_SALT)
    facts = requests.engine.facts
    tokens = list[tuple[int, ...]]()

    def submit(prompt: Any, params: Any, _: Any) -> Any:
        tokens.append(tuple(prompt))
        return requests.compute(prompt, params, "tokens")

    batch = Batch(
        prompts=texts,
        labels=[label_of(text, "") for text in texts],
        variants=[SamplingParams(max_tokens=0, cache_salt=salt)],
        shape=Shape(several, None),
        errors="raise",
        preparer=facts.preparer,
        submit=submit,
    )
    handles = yield from wait_all((yield from batch.start()), bar)
    yield from note_cuts(requests, texts, list(map(len, tokens)))
    return [(ids, handle.record.token_states()) for ids, handle in zip(tokens, handles, strict=True)]
