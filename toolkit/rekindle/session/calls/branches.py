"""Branches of a generation: other ones that begin like it, and go on with another token at some place."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from rekindle import checks
from rekindle.errors import InvalidRequest
from rekindle.markup import counted
from rekindle.messages import Begun
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.request import SamplingOptions, SamplingParams, check_keywords
from rekindle.results.generation import Generation
from rekindle.results.tokens import TokenLogprob
from rekindle.session.calls.handle import Handle
from rekindle.session.calls.prompts import Ask

Submit = Callable[[tuple[int, ...], SamplingParams, Ask[Any], Begun], Handle]
"""Makes a request of a prompt, parameters, the keywords that they come of, and the beginning of its output."""


@dataclass(frozen=True)
class Branches:
    """The maker of the branches of a generation.

    Attributes:
        options: the keywords of the call that it came of.
        parsed: makes sampling parameters of the keywords of a call, and checks them.
        submit: sends the request of a branch.
        tokenizer: None for a model that is asked by token ids alone.
        vocab_size: the bound that token ids are below.
        meanwhile: how far the programs were when the request was submitted, if some were still being compiled.
    """

    options: Ask[Any]
    parsed: Callable[[Ask[Any]], SamplingParams]
    submit: Submit
    tokenizer: Tokenizer | None
    vocab_size: int
    meanwhile: str

    def branch(self, generation: Generation, at: int, token: int | str, options: SamplingOptions) -> Handle:
        """See `Generation.branch`."""
        checks.integer("at", at, 0, len(generation.token_ids) - 1)
        asked = self._asked(generation, options)
        params = self.parsed(asked)
        if params.max_tokens is not None and params.max_tokens <= at:
            raise InvalidRequest(
                f"max_tokens counts all tokens of a branch, and {at + 1} of them are given; got {params.max_tokens}"
            )
        scores = generation.logprobs or ()
        chosen = self._token_id(token, scores[at : at + 1])
        begun = Begun((*generation.token_ids[:at], chosen))
        if params.logprobs is not None:
            begun = replace(begun, logprobs=(*scores[:at], _score(chosen, at, scores)))
        return self.submit(generation.prompt_token_ids, params, asked, begun)

    def _asked(self, generation: Generation, options: SamplingOptions) -> Ask[Any]:
        """Return the keywords of a branch: those of the generation, with the same draws, and what is asked anew."""
        check_keywords(options, SamplingOptions.__annotations__)
        names = SamplingOptions.__annotations__
        same: dict[str, Any] = {name: value for name, value in self.options.items() if name in names}
        same |= {"seed": None if options.get("temperature") == 0 else generation.seed, "prompt_logprobs": None}
        return cast(Ask[Any], same | options)

    def _token_id(self, token: int | str, scored: tuple[TokenLogprob, ...]) -> int:
        """Return the id of a token that is given by its id or its text, with what was likely in its place."""
        if not isinstance(token, str):
            return checks.integer("token", token, 0, self.vocab_size - 1)
        for likely in scored:
            for each in (likely, *likely.top):
                if each.text == token:
                    return each.token_id
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so a token is chosen by its id")
        ids = self.tokenizer.encode_chat(token)
        if len(ids) != 1:
            raise InvalidRequest(
                f"token must be one token, or its text; {token!r:.60} is {counted(len(ids), 'token')}: {ids[:8]}"
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
