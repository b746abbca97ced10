"""Branches of a generation: other ones that begin like it, and go on with another token at some place."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from rekindle.client.handle import Handle
from rekindle.client.prompts import GenerateOptions, ToolSchemas
from rekindle.core.errors import InvalidRequest
from rekindle.core.markup import quantity
from rekindle.core.messages import OutputPrefix
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingOptions, SamplingParams, check_keywords
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation


class Maker(Protocol):
    """The maker of requests of one session."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def vocab_size(self) -> int: ...
    def params(self, ask: GenerateOptions[Any]) -> SamplingParams: ...
    def begin(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        ask: GenerateOptions[Any],
        output_prefix: OutputPrefix,
        told: ToolSchemas | None,
    ) -> Handle: ...


@dataclass(frozen=True)
class Branches:
    """The maker of the branches of a generation. It does not keep the session alive, nor what that has in memory.

    Attributes:
        maker: returns what makes the requests, or raises SessionClosed.
        options: the sampling options of the call that the generation came of.
        meanwhile: how far the programs were when the request was submitted, if some were still being compiled.
        told: the tools of the conversation that the generation answers; None if it answers none.
    """

    maker: Callable[[], Maker]
    options: SamplingOptions
    meanwhile: str
    told: ToolSchemas | None

    def branch(self, generation: Generation, at: int, token: int | str, options: SamplingOptions) -> Handle:
        """See `Generation.branch`."""
        if not generation.token_ids:
            raise InvalidRequest("the generation has no tokens, so there is no place to branch at")
        checks.integer("at", at, 0, len(generation.token_ids) - 1)
        maker, asked = self.maker(), self._asked(generation, options)
        params = maker.params(asked)
        if params.max_tokens is not None and params.max_tokens <= at:
            raise InvalidRequest(
                f"max_tokens counts all tokens of a branch, and {at + 1} of them are given; got {params.max_tokens}"
            )
        scores = generation.logprobs or ()
        chosen = _token_id(token, scores[at : at + 1], maker)
        output_prefix = OutputPrefix((*generation.token_ids[:at], chosen))
        if params.logprobs is not None:
            output_prefix = replace(output_prefix, logprobs=(*scores[:at], _score(chosen, at, scores)))
        return maker.begin(generation.prompt_token_ids, params, asked, output_prefix, self.told)

    def _asked(self, generation: Generation, options: SamplingOptions) -> GenerateOptions[Any]:
        """Return the keywords of a branch: those of the generation, with the same draws, and what is asked anew."""
        check_keywords(options, SamplingOptions.__annotations__)
        seed = None if options.get("temperature") == 0 else generation.seed
        return cast(
            GenerateOptions[Any],
            {**self.options, "seed": seed, "prompt_logprobs": None, "prompt_logprobs_from": 0, **options},
        )


def _token_id(token: int | str, scored: tuple[TokenLogprob, ...], maker: Maker) -> int:
    """Return the id of a token that is given by its id or its text, with what was likely in its place."""
    if not isinstance(token, str):
        return checks.integer("token", token, 0, maker.vocab_size - 1)
    for likely in scored:
        for each in (likely, *likely.top):
            if each.text == token:
                return each.token_id
    if maker.tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so a token is chosen by its id")
    ids = maker.tokenizer.encode_chat(token)
    if len(ids) != 1:
        raise InvalidRequest(
            f"token must be one token, or its text; {token!r:.60} is {quantity(len(ids), 'token')}: {ids[:8]}"
        )
    return ids[0]


def _score(token_id: int, at: int, scores: tuple[TokenLogprob, ...]) -> TokenLogprob:
    """Return the log-probability of a token in a place, of those that are known there.

    Raises:
        InvalidRequest: it is not known.
    """
    if not scores:
        raise InvalidRequest(
            "logprobs of a branch begin with those of the generation, which was made without; leave logprobs out"
        )
    here = scores[at]
    for each in (here, *here.top):
        if each.token_id == token_id:
            return replace(each, top=here.top)
    known = ", ".join(f"{each.text!r} ({each.token_id})" for each in here.top) or "none"
    raise InvalidRequest(
        f"the probability of token {token_id} in place {at} is not known. Known are {known}: choose one of these, ask "
        "for more with logprobs=, or give logprobs=None for a branch without"
    )
