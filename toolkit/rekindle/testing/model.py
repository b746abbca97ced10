"""Fake model: tokens, bans and log-probabilities computable by hand. For `rekindle.testing`."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import mul
from typing import Any

from rekindle.core.models.config import LayerConfig, ModelConfig, Rope, ShortConvolution
from rekindle.core.request.constraint import Allowed
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.thoughts import ThoughtWatch
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.masks import run_steps
from rekindle.testing.grammar import VOCAB_SIZE, FakeGrammar, constrained

FAKE_MODEL = ModelConfig.llama(
    family="fake", vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=1, max_context=4096, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


FAKE_STATE_MODEL = replace(
    FAKE_MODEL, layers=(*FAKE_MODEL.layers, LayerConfig(None, None, state=ShortConvolution(channels=32, taps=3)))
)
"""The fake model with a layer that keeps a state, as large as two pages of 16 tokens."""


def next_token(tokens: Sequence[int], draw: int = 0, banned: Collection[int] = ()) -> int:
    """Compute the fake model's next token.

    It is `draw` plus the sum of (position + 1) * (token + 1) over all tokens, modulo `VOCAB_SIZE`. If it is banned, the
    next token id without a ban takes its place.

    Args:
        tokens: every token of the request so far.
        draw: see `draw_of`.
        banned: see `banned_tokens`.
    """
    positions = range(1, len(tokens) + 1)
    first: int = draw + sum(positions) + sum(map(mul, positions, tokens))
    return next(token for step in range(VOCAB_SIZE) if (token := (first + step) % VOCAB_SIZE) not in banned)


def draw_of(params: SamplingParams) -> int:
    """Return the term of sampling in the sum: 0 if greedy, else the seed."""
    return (params.seed or 0) if params.temperature > 0 else 0


def banned_tokens(request: Request, tokens: Sequence[int], bits: Any = None) -> set[int]:
    """Return the tokens banned as the next token of a request. The fake has no logits, so any penalty is a ban.

    Args:
        request: the request.
        tokens: every token of the request so far.
        bits: the mask of its constraint, as in `Allowed`; None for all tokens. A mask banning every token is ignored.
    """
    params, output = request.params, tokens[len(request.prompt) :]
    allowed = params.allowed_token_ids
    banned = set() if allowed is None else set(range(VOCAB_SIZE)) - allowed
    banned |= {token for token, bias in params.logit_bias if bias < 0}
    banned |= {word[-1] for word in request.bad_words if tuple(tokens[len(tokens) - len(word) + 1 :]) == word[:-1]}
    if len(output) < params.min_tokens:
        banned |= request.end_ids
    penalized = set(tokens) if params.repetition_penalty > 1 else set()
    if params.frequency_penalty > 0 or params.presence_penalty > 0:
        penalized |= set(output)
    forbidden = set() if bits is None else {t for t in range(VOCAB_SIZE) if not bits[t // 32] >> t % 32 & 1}
    for more in (penalized, forbidden):
        banned = banned if len(banned | more) == VOCAB_SIZE else banned | more
    return banned


def score_of(token: int, alternatives: int, among: Collection[int] | None = None) -> TokenLogprob:
    """Return the fake log-probability of a token: minus its id. The alternatives are the token and its successors.

    Args:
        token: the token.
        alternatives: the number of alternatives.
        among: the only tokens to choose them from; None for the vocabulary.
    """
    top = [(token + step) % VOCAB_SIZE for step in range(VOCAB_SIZE if among else alternatives)]
    top = [each for each in top if each in among][:alternatives] if among else top
    others = tuple(TokenLogprob(other, "", -float(other), rank) for rank, other in enumerate(top, 1))
    return TokenLogprob(token, "", -float(token), 1, others)


def state_of(position: int, token: int) -> float:
    """Return the fake hidden state of a token at a position, a single number."""
    return float((position + 1) * (token + 1) % VOCAB_SIZE)


def expected_tokens(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    draw: int = 0,
    end_ids: Collection[int] = (),
    begun: Sequence[int] = (),
    grammar: FakeGrammar | None = None,
) -> tuple[int, ...]:
    """Return the output of the fake model for a prompt: `begun`, and further tokens up to an end id or a limit."""
    params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
    request = Request(
        0, tuple(prompt), params, frozenset(end_ids), len(prompt) + max_tokens, output_prefix=tuple(begun)
    )
    return expected_of(request if grammar is None else constrained(request, grammar))


def expected_of(request: Request) -> tuple[int, ...]:
    """Return the output of the fake model for a request, ignoring stop strings."""
    tokens = list(request.initial_tokens)
    matcher, allowed = _matcher(request)
    watch = None if request.thoughts is None else ThoughtWatch(request.thoughts, request.initial_output)
    is_done = request.complete
    while len(tokens) < request.longest and not is_done:
        banned = banned_tokens(request, tokens, None if allowed is None else allowed.bits)
        forced = () if watch is None else watch.forced
        tokens.append(forced[0] if forced else next_token(tokens, draw_of(request.params), banned))
        if watch is not None:
            watch.push(tokens[-1])
        is_done = tokens[-1] in request.end_ids
        if matcher is not None and not is_done:
            allowed = run_steps(matcher.take(tokens[-1], ONE_BY_ONE))
            is_done = allowed.complete
    return tuple(tokens[len(request.prompt) :])


ONE_BY_ONE = 2**30
"""A minimum number of forced tokens beyond any output, so that every token is generated."""


def _matcher(request: Request) -> tuple[Any, Allowed | None]:
    """Return the matcher of a request and the mask of its first token; None without a constraint."""
    if request.constrained is None:
        return None, None
    matcher = request.constrained.grammar.matcher(request)
    return matcher, run_steps(matcher.start())
