"""Pairs of texts for encoders, which read both at once, and a note about cut texts."""

from collections.abc import Sequence
from typing import Any, Final

from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import PicturedTokens, Prompt
from rekindle.core.request import checks
from rekindle.core.text.tokenizer import Tokenizer

CUT: Final = (
    "Some texts have more than {} tokens, and lose their end, as the model's files say. This note appears once per "
    "session."
)


def encoder_texts(texts: Any) -> tuple[Sequence[str], bool]:
    """Return the texts of a call, and whether the call has a list of them.

    Raises:
        InvalidRequest: it has neither a text nor a list of texts.
    """
    if isinstance(texts, str):
        return [checks.text("texts", texts, checks.LONGEST_LONG_TEXT)], False
    if not checks.is_sequence(texts):
        raise InvalidRequest(f"texts must be a text or a list of texts, got {checks.preview(texts)}")
    checks.check_size("texts", texts, checks.MOST_LONG_TEXTS)
    return [checks.text(f"texts[{index}]", text, checks.LONGEST_LONG_TEXT) for index, text in enumerate(texts)], True


def pair_prompts(requests: Requests, firsts: Sequence[str], seconds: Sequence[str]) -> Waits[list[Prompt]]:
    """Return the prompts of pairs of texts for an encoder, with the types of their tokens.

    Raises:
        InvalidRequest: the model has no tokenizer, or a text has a lone surrogate.
    """
    facts = requests.engine.facts
    tokenizer, model = facts.tokenizer, facts.model
    if tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so it takes no pairs of texts: fetch its tokenizer.json")

    def work(tokenizer: Tokenizer) -> list[tuple[Prompt, bool]]:
        return [
            _prompt(tokenizer, model.vocab_size, model.token_types, *pair) for pair in zip(firsts, seconds, strict=True)
        ]

    pairs = yield from in_a_thread(lambda: work(tokenizer), "pairs")
    if any(is_cut for _, is_cut in pairs):
        requests.note_once("cut", CUT.format(tokenizer.longest))
    return [prompt for prompt, _ in pairs]


def note_cuts(requests: Requests, prompts: Sequence[Prompt | Exception], counts: Sequence[int]) -> Waits[None]:
    """Display a note, once per session, if an encoder leaves out the end of a text.

    Args:
        prompts: the texts, and other prompts.
        counts: the number of tokens of each.
    """
    tokenizer = requests.tokenizer
    if tokenizer is None or tokenizer.longest is None:
        return
    pairs, longest = zip(prompts, counts, strict=True), tokenizer.longest
    full = [prompt for prompt, count in pairs if isinstance(prompt, str) and count >= longest]
    if full and (yield from in_a_thread(lambda: any(map(tokenizer.is_cut, full)), "cuts")):
        requests.note_once("cut", CUT.format(longest))


def _prompt(tokenizer: Tokenizer, vocab_size: int, types: int, first: str, second: str) -> tuple[Prompt, bool]:
    """Return the tokens of a pair, and whether an end of it is cut off."""
    ids, kinds, is_cut = tokenizer.encode_pair(first, second)
    if any(kinds):
        ids = [token + vocab_size * min(kind, types - 1) for token, kind in zip(ids, kinds, strict=True)]
    return PicturedTokens(tuple(ids), ()), is_cut
