"""Branches of a generation: new requests with the same prefix and another token at a chosen position."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from rekindle.client.calls.images import images_of
from rekindle.client.calls.options import GenerateOptions, ToolSchemas, is_greedy
from rekindle.client.handle import Handle
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import OutputPrefix, Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingOptions, SamplingParams, check_keywords
from rekindle.core.request.tokens import TokenLogprob, first_runs
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.words import quantity
from rekindle.results.generation import Generation

_OF_PROMPT: Final = ("prompt_logprobs", "truncate_prompt_tokens")
"""Options about the prompt of a call. A branch has the same prompt, already cut."""


class BranchRequests(Protocol):
    """Interface of `Requests` for branches: checks the options of a call and submits its request."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def vocab_size(self) -> int: ...
    def params(self, options: GenerateOptions[Any]) -> SamplingParams: ...
    def begin(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: GenerateOptions[Any],
        output_prefix: OutputPrefix,
        tools: ToolSchemas | None,
        label: str | None,
    ) -> Handle: ...


@dataclass(frozen=True)
class Branches:
    """Submitter of the branches of a generation. It keeps neither the session nor its memory alive.

    Attributes:
        factory: returns the session's `Requests`, or raises SessionClosed.
        options: the options of the call that produced the generation, except those of its conversation.
        meanwhile: the progress of the compilation at submission, as text; empty if no program was being compiled.
        tools: the tools of the conversation; None if the prompt is not a conversation.
        prompt: the prompt with its images; None for a prompt without, whose tokens the generation has.
        image_token: the id of the token in place of embeddings of images; None for a prompt without images.
        max_context: the largest number of tokens of a prompt and its answer together.
    """

    factory: Callable[[], BranchRequests]
    options: GenerateOptions[Any]
    meanwhile: str
    tools: ToolSchemas | None
    prompt: Prompt | None = None
    image_token: int | None = None
    max_context: int | None = None

    @property
    def images(self) -> tuple[Any, ...]:
        """Images of the prompt, for displays."""
        return images_of(self.prompt)

    def branch(self, generation: Generation, at: int, token: int | str, options: SamplingOptions) -> Handle:
        """See `Generation.branch`."""
        if not generation.token_ids:
            raise InvalidRequest("the generation has no tokens, so it has no position to branch at")
        checks.integer("at", at, 0, len(generation.token_ids) - 1)
        requests, call_options = self.factory(), self._call_options(generation, options)
        params = requests.params(call_options)
        if params.max_tokens is not None and params.max_tokens <= at:
            raise InvalidRequest(
                f"max_tokens counts all tokens of a branch, including the {at + 1} up to the branch; "
                f"got {params.max_tokens}"
            )
        logprobs = generation.logprobs or ()
        token_id = _token_id(token, logprobs[at : at + 1], requests)
        output_prefix = OutputPrefix(
            (*generation.token_ids[:at], token_id), weights_version=first_runs(generation.weights_version, at)
        )
        if params.logprobs is not None:
            output_prefix = replace(output_prefix, logprobs=(*logprobs[:at], _logprob(token_id, at, logprobs)))
        prompt = generation.prompt_token_ids if self.prompt is None else self.prompt
        return requests.begin(prompt, params, call_options, output_prefix, self.tools, generation.prompt)

    def _call_options(self, generation: Generation, options: SamplingOptions) -> GenerateOptions[Any]:
        """Return the options of a branch: the generation's options and seed, overridden by `options`."""
        check_keywords(options, SamplingOptions.__annotations__)
        seed = None if is_greedy(options.get("temperature")) else generation.seed
        return cast(
            GenerateOptions[Any],
            {**self.options, "seed": seed, **dict.fromkeys(_OF_PROMPT), "prompt_logprobs_from": 0, **options},
        )


def _token_id(token: int | str, logprobs: tuple[TokenLogprob, ...], requests: BranchRequests) -> int:
    """Return the id of a token, given as an id or as text. A text is compared with `logprobs` before it is tokenized.

    Args:
        logprobs: the log-probability at the token's position, if it was requested.
    """
    if not isinstance(token, str):
        return checks.integer("token", token, 0, requests.vocab_size - 1)
    for logprob in logprobs:
        for each in (logprob, *logprob.top):
            if each.text == token:
                return each.token_id
    if requests.tokenizer is None:
        raise InvalidRequest(f"the model has no tokenizer, so token must be a token id; got {token!r:.60}")
    ids = requests.tokenizer.encode_chat(token)
    if len(ids) != 1:
        raise InvalidRequest(
            f"token must be a token id or the text of one token, but {token!r:.60} is {quantity(len(ids), 'token')}: "
            f"{ids[:8]}"
        )
    return ids[0]


def _logprob(token_id: int, at: int, logprobs: tuple[TokenLogprob, ...]) -> TokenLogprob:
    """Return the log-probability of a token at a position of the generation.

    Raises:
        InvalidRequest: the generation has no log-probability of the token.
    """
    if not logprobs:
        raise InvalidRequest(
            "a branch with logprobs starts with the generation's logprobs, and the generation has none: leave out "
            "logprobs"
        )
    here = logprobs[at]
    for each in (here, *here.top):
        if each.token_id == token_id:
            return replace(each, top=here.top)
    alternatives = ", ".join(f"{each.text!r} ({each.token_id})" for each in here.top) or "none"
    raise InvalidRequest(
        f"the log-probability of token {token_id} at position {at} was not returned. Choose one of the returned "
        f"tokens: {alternatives}; or generate with a higher logprobs=, or branch with logprobs=None"
    )
