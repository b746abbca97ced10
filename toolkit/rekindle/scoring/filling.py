"""The likeliest words for the masks of texts, by an encoder."""

from functools import partial
from typing import Any, Final, overload

import numpy as np

from rekindle.client.requests import HasRequests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.heads import Floats, WordHead
from rekindle.results.scores.masked_words import MaskedWord, MaskedWords
from rekindle.scoring.computing import ScoringBar
from rekindle.scoring.encoding import probabilities_of, token_states
from rekindle.scoring.pairs import encoder_texts

MOST: Final = 1000
"""Most words for a mask."""


@overload
def fill(
    session: HasRequests, texts: str, *, top_k: int = 5, cache_salt: str = "", progress: bool | None = None
) -> Waits[MaskedWords]: ...
@overload
def fill(
    session: HasRequests, texts: list[str], *, top_k: int = 5, cache_salt: str = "", progress: bool | None = None
) -> Waits[list[MaskedWords]]: ...
def fill(
    session: HasRequests, texts: Any, *, top_k: int = 5, cache_salt: str = "", progress: bool | None = None
) -> Waits[Any]:
    """Find the likeliest words for the masks of a text, or of each text of a list.

    The call waits for all texts. Leaving the wait early cancels the requests.

    Args:
        texts: one text, or a list of texts, each with the tokenizer's mask token, such as "[MASK]" or "<mask>".
        top_k: the number of words for each mask.
        cache_salt: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.MaskedWords`; for a list of texts, a list of them.

    Raises:
        InvalidRequest: a text is no str, has a lone surrogate, or has no mask within the most tokens of the model; or
            the model has no head over words.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    facts = requests.engine.facts
    head, tokenizer = facts.checkpoint.uses.words, requests.tokenizer
    if head is None or tokenizer is None:
        raise InvalidRequest(
            "the model has no head over masked words: open an encoder with MaskedLM in its architecture; generate() "
            "continues texts with a model that generates"
        )
    count = checks.integer("top_k", top_k, 1, min(MOST, facts.model.vocab_size))
    bar = ScoringBar("filling", "texts", requests.draws_progress(progress))
    values, several = encoder_texts(texts)
    for index, text in enumerate(values):
        if head.mask_text not in text:
            name = f"texts[{index}]" if several else "the text"
            raise InvalidRequest(f"{name} has no {head.mask_text}: write it in the place of the missing word")
    states = yield from token_states(requests, values, several, cache_salt, bar)
    make = partial(_words, tokenizer, head, count)

    def work() -> list[MaskedWords]:
        return [make(text, ids, rows) for text, (ids, rows) in zip(values, states, strict=True)]

    results = yield from in_a_thread(work, "fill")
    return results if several else results[0]


def _words(
    tokenizer: Tokenizer, head: WordHead, count: int, text: str, ids: tuple[int, ...], states: Floats
) -> MaskedWords:
    """Return the words for masks.

    Raises:
        InvalidRequest: the masks are in the cut end.
    """
    places = [place for place, token in enumerate(ids) if token == head.mask]
    if not places:
        raise InvalidRequest(
            f"the {head.mask_text} is behind the first {tokenizer.longest} tokens, where the model's files cut texts: "
            "shorten the text"
        )
    masks = []
    for place, row in zip(places, probabilities_of(head.logits(states[places])), strict=True):
        best = np.argsort(-row, kind="stable")[:count].tolist()
        masks.append(
            tuple(
                MaskedWord(
                    token,
                    tokenizer.decode([token], skip_special_tokens=False),
                    float(row[token]),
                    tokenizer.decode([*ids[:place], token, *ids[place + 1 :]], skip_special_tokens=len(places) == 1),
                )
                for token in best
            )
        )
    return MaskedWords(text, tuple(masks))
