"""The fake model: tokens, bans and log-probabilities that can be computed by hand. For `rekindle.testing`."""

from collections.abc import Collection, Sequence
from operator import mul
from typing import Any

from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.request.allowed import Allowed
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.masks import alone
from rekindle.testing.grammar import VOCAB_SIZE, FakeGrammar, constrained

FAKE_MODEL = ModelConfig.llama(
    family="fake", vocab_size=VOCAB_SIZE, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
    num_kv_heads=1, head_dim=1, max_context=4096, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip


def next_token(tokens: Sequence[int], draw: int = 0, banned: Collection[int] = ()) -> int:
    """Compute the fake model: `draw` and the sum of (position + 1) * (token + 1), modulo `VOCAB_SIZE`; if that token is
    banned, the next one that is not.

    Args:
        tokens: every token of the request so far.
        draw: see `draw_of`.
        banned: see `banned_tokens`.
    """
    placed = range(1, len(tokens) + 1)
    first: int = draw + sum(placed) + sum(map(mul, placed, tokens))
    return next(token for step in range(VOCAB_SIZE) if (token := (first + step) % VOCAB_SIZE) not in banned)


def draw_of(params: SamplingParams) -> int:
    """Return what sampling adds to the sum: 0 when greedy, else the seed."""
    return (params.seed or 0) if params.temperature > 0 else 0


def banned_tokens(request: Request, tokens: Sequence[int], bits: Any = None) -> set[int]:
    """Return the tokens that a request may not take next. The fake has no logits, so any penalty is a ban.

    Args:
        tokens: every token of the request so far.
        bits: what its constraint allows, as in `Allowed`; None for all. Where nothing would be left, it is not kept.
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


def score_of(token: int, alternatives: int) -> TokenLogprob:
    """Return the fake log-probability of a token, the token's negative, with the tokens after it as alternatives."""
    top = [(token + step) % VOCAB_SIZE for step in range(alternatives)]
    others = tuple(TokenLogprob(other, "", -float(other), rank) for rank, other in enumerate(top, 1))
    return TokenLogprob(token, "", -float(token), 1, others)


def state_of(position: int, token: int) -> float:
    """Return the fake hidden state of a token at its position, which is one number."""
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
    """Return what the fake model generates without banned tokens, after `begun` and up to an end id."""
    params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
    request = Request(
        0, tuple(prompt), params, frozenset(end_ids), len(prompt) + max_tokens, output_prefix=tuple(begun)
    )
    return expected_of(request if grammar is None else constrained(request, grammar))


def expected_of(request: Request) -> tuple[int, ...]:
    """Return what the fake model generates for a request, without regard to stop strings."""
    tokens = list(request.initial_tokens)
    place, allowed = _place(request)
    ended = request.complete
    while len(tokens) < request.longest and not ended:
        banned = banned_tokens(request, tokens, None if allowed is None else allowed.bits)
        tokens.append(next_token(tokens, draw_of(request.params), banned))
        ended = tokens[-1] in request.end_ids
        if place is not None and not ended:
            allowed = alone(place.take(tokens[-1], ONE_BY_ONE))
            ended = allowed.complete
    return tuple(tokens[len(request.prompt) :])


ONE_BY_ONE = 2**30


def _place(request: Request) -> tuple[Any, Allowed | None]:
    """Return the place of a request in its grammar, and what its output may begin with; None without a constraint."""
    if request.constrained is None:
        return None, None
    place = request.constrained.grammar.matcher(request)
    return place, alone(place.start())
