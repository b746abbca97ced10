"""The fake model: tokens, bans and log-probabilities that can be computed by hand. For `rekindle.testing`."""

from collections.abc import Collection, Sequence

from rekindle.models.config import ModelConfig, Rope
from rekindle.request import Request, SamplingParams
from rekindle.results.tokens import TokenLogprob

VOCAB_SIZE = 251
"""A prime, so that a token at a wrong position changes the sum in `next_token`."""

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
    first = draw + sum((position + 1) * (token + 1) for position, token in enumerate(tokens))
    return next(token for step in range(VOCAB_SIZE) if (token := (first + step) % VOCAB_SIZE) not in banned)


def draw_of(params: SamplingParams) -> int:
    """Return what sampling adds to the sum: 0 when greedy, else the seed."""
    return (params.seed or 0) if params.temperature > 0 else 0


def banned_tokens(request: Request, tokens: Sequence[int]) -> set[int]:
    """Return the tokens that a request may not take next. The fake has no logits, so any penalty is a ban.

    Args:
        tokens: every token of the request so far.
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
    return banned if len(banned | penalized) == VOCAB_SIZE else banned | penalized


def score_of(token: int, alternatives: int) -> TokenLogprob:
    """Return the fake log-probability of a token, the token's negative, with the tokens after it as alternatives."""
    top = [(token + step) % VOCAB_SIZE for step in range(alternatives)]
    others = tuple(TokenLogprob(other, "", -float(other), rank) for rank, other in enumerate(top, 1))
    return TokenLogprob(token, "", -float(token), 1, others)


def expected_tokens(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    draw: int = 0,
    end_ids: Collection[int] = (),
    begun: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return what the fake model generates without parameters that ban, with `begun` and the first of `end_ids`."""
    params = SamplingParams(max_tokens=max_tokens, temperature=float(draw > 0), seed=draw)
    return expected_of(
        Request(0, tuple(prompt), params, frozenset(end_ids), len(prompt) + max_tokens, begun=tuple(begun))
    )


def expected_of(request: Request) -> tuple[int, ...]:
    """Return what the fake model generates for a request, without regard to stop strings."""
    tokens = list(request.known)
    ended = not request.end_ids.isdisjoint(request.begun[-1:])
    while len(tokens) < request.longest and not ended:
        tokens.append(next_token(tokens, draw_of(request.params), banned_tokens(request, tokens)))
        ended = tokens[-1] in request.end_ids
    return tuple(tokens[len(request.prompt) :])
