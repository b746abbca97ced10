"""Log-probabilities of token ids chosen by a client, at each position of an output."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rekindle.client.handle import Handle
from rekindle.core.errors import InvalidBatch, InvalidRequest
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.errors import invalid_field
from rekindle.server.http.streaming import cancel, wait_all
from rekindle.server.models.served import ServedModel

FIELD = "logprob_token_ids"


def check_explicit(call: Call, most: int) -> None:
    """Raise if a call for chosen token ids takes too many requests.

    Each id takes a request of one token at each position, behind a prefix in the cache.

    Args:
        call: the call.
        most: the most requests of one body.

    Raises:
        ApiError: the output may be too long.
    """
    longest = call.options.get("max_tokens")
    longest = longest if type(longest) is int else most + 1
    count = call.answers * len(call.reports.explicit) * longest
    if count > most:
        message = f"{FIELD} times max_tokens (and the number of answers) must be at most {most}: give fewer ids, or"
        raise invalid_field(FIELD, f"{message} a smaller max_tokens")


async def with_explicit(model: ServedModel, call: Call, generations: Sequence[Generation]) -> list[Generation]:
    """Return the generations with the chosen token ids as the alternatives at each position."""
    outputs = [(generation.prompt_token_ids, generation.token_ids) for generation in generations]
    tops = await _scores(model, call, outputs)
    return [
        replace(generation, logprobs=tuple(_with_top(token, call, tops) for token in generation.logprobs or ()))
        for generation in generations
    ]


async def with_explicit_piece(model: ServedModel, call: Call, before: Sequence[int], piece: Piece) -> Piece:
    """Return a piece behind a sequence with the chosen token ids as the alternatives at each position."""
    tops = await _scores(model, call, [(before, piece.token_ids)])
    return replace(piece, logprobs=tuple(_with_top(token, call, tops) for token in piece.logprobs or ()))


async def _scores(
    model: ServedModel, call: Call, outputs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Iterator[TokenLogprob | None]:
    """Return the scores of all chosen token ids at each position of each output, one after the other."""
    handles: list[Handle] = []
    try:
        for prompt, tokens in outputs:
            for place in range(len(tokens)):
                handles += await _submit(model, call, (*prompt, *tokens[:place]))
        return iter([(each.prompt_logprobs or (None,))[-1] for each in await wait_all(handles)])
    except InvalidRequest as error:
        inner = next(iter(error.errors.values())) if isinstance(error, InvalidBatch) else error
        raise invalid_field(FIELD, str(inner).replace("token_ids", FIELD, 1)) from error
    finally:
        cancel(handles)


async def _submit(model: ServedModel, call: Call, before: tuple[int, ...]) -> list[Handle]:
    """Submit a request for each chosen token id behind a sequence."""
    return await model.session.submit_all(
        token_ids=[(*before, token) for token in call.reports.explicit],
        max_tokens=0,
        temperature=0,
        prompt_logprobs=0,
        prompt_logprobs_from=len(before),
        cache_salt=call.options.get("cache_salt", ""),
        adapter=model.adapter,
    )


def _with_top(token: TokenLogprob, call: Call, scores: Iterator[TokenLogprob | None]) -> TokenLogprob:
    """Return a token with itself and the next scores as alternatives, the likeliest first."""
    by_id = {token.token_id: token}
    for score in (next(scores) for _ in call.reports.explicit):
        if score is not None:
            by_id.setdefault(score.token_id, score)
    return replace(token, top=tuple(sorted(by_id.values(), key=lambda each: -each.logprob)))
