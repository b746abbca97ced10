"""Random texts of grammars."""

from collections.abc import Collection
from random import Random

from llguidance import LLMatcher, LLTokenizer

from rekindle.core.text.tokenizer import Tokenizer


def walk(
    grammar: str,
    vocabulary: LLTokenizer,
    text: Tokenizer,
    seed: int,
    end: int,
    *,
    rare: Collection[str] = (),
    closing: Collection[str] = (),
    endings: Collection[str] = (),
) -> list[int]:
    """Return the tokens of a random text of a grammar; at each possible end, it ends with a chance of one half.

    After 60 tokens, parts end wherever the grammar allows it.

    Args:
        end: the token at the end of an answer.
        rare: characters for places without another choice, like exponents too large for numbers.
        closing: marks at the end of a part, beside brackets and quotes.
        endings: texts at the end of a free text, written whole after 60 tokens where the grammar allows it.
    """
    random, tokens = Random(seed), list[int]()
    ends = [token for mark in (*"\"},]\n<>/')", *closing) for token in text.encode_chat(mark)]
    unwanted = [token for mark in rare for token in text.encode_chat(mark)]
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    spellings = [text.encode_chat(ending) for ending in endings]
    while not matcher.is_stopped() and not (matcher.is_accepting() and random.random() < 0.5):
        whole = [each for each in spellings if len(tokens) > 60 and matcher.validate_tokens(each) == len(each)]
        if whole:
            assert matcher.consume_tokens(whole[0])
            tokens += whole[0]
            continue
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(text.vocab_size) if token != end and mask[token // 8] >> token % 8 & 1]
        allowed = [token for token in allowed if token not in unwanted] or allowed
        closes = [token for token in ends if token in allowed]
        forced = matcher.compute_ff_tokens()
        tokens.append(forced[0] if forced else random.choice(closes if closes and len(tokens) > 60 else allowed))
        assert matcher.consume_token(tokens[-1])
        assert len(tokens) < 2000
    assert not matcher.is_error()
    return tokens
