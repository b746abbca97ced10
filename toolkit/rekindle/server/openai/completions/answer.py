"""Completions."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.common.captures import activations_object
from rekindle.server.common.events import Head
from rekindle.server.common.logprobs import TextLogprobs, prompt_scores
from rekindle.server.common.prompts import Text
from rekindle.server.openai.completions.body import CompletionRequest
from rekindle.server.openai.events import finish_reason, stop_reason, usage

Decode = Callable[[Sequence[int]], str]
"""Function from token ids to their text."""
KIND = "text_completion"


def completion(
    head: Head, generations: Sequence[Generation], request: CompletionRequest, decode: Decode
) -> dict[str, Any]:
    """Return a completion with a choice for each generation."""
    choices = [_choice(index, each, request, decode) for index, each in enumerate(generations)]
    return {**head.of(KIND), "choices": choices, "usage": usage(generations, request.call.choices)}


def _choice(index: int, generation: Generation, request: CompletionRequest, decode: Decode) -> dict[str, Any]:
    text, logprobs = generation.text, None
    own = own_prompt(request, index, generation.prompt_token_ids)
    if request.logprobs is not None:
        prompt = []
        if request.echo:
            prompt = echoed_scores(generation.prompt_token_ids, generation.prompt_logprobs or (), decode)
        writer = TextLogprobs(count_added(prompt, own), by_id=request.call.reports.by_id)
        logprobs = writer.of([*prompt, *(generation.logprobs or ())])
    if request.echo:
        text = prompt_text(own, decode) + text
    reports, activations = request.call.reports, activations_object(generation)
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason(generation),
        "stop_reason": stop_reason(generation, request.call),
        "prompt_logprobs": prompt_scores(generation.prompt_logprobs or ()) if reports.prompt else None,
        "prompt_token_ids": list(generation.prompt_token_ids) if reports.ids else None,
        "token_ids": list(generation.token_ids) if reports.ids else None,
        **({} if activations is None else {"activations": activations}),
    }


def own_prompt(request: CompletionRequest, choice: int, token_ids: Sequence[int]) -> Text:
    """Return the prompt of a choice to echo: as in the body, or the token ids in use if it may have been cut."""
    return request.prompts[choice] if request.call.options.get("truncate_prompt_tokens") is None else list(token_ids)


def prompt_text(prompt: Text, decode: Decode) -> str:
    """Return the text of a prompt."""
    return prompt if isinstance(prompt, str) else decode(prompt)


def count_added(tokens: Sequence[TokenLogprob], prompt: Text) -> int:
    """Count the leading tokens added by the tokenizer to the prompt's text, e.g. BOS."""
    if not isinstance(prompt, str):
        return 0
    count = 0
    while count < len(tokens) and not prompt.startswith(tokens[count].text):
        count += 1
    return count if count < len(tokens) else 0


def echoed_scores(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], decode: Decode
) -> list[TokenLogprob]:
    """Return the log-probabilities of an echoed prompt; NaN for the first token, which has none."""
    scores = []
    for token, logprob in zip(token_ids, logprobs, strict=True):
        if logprob is None:
            text = decode([token])
            logprob = TokenLogprob(token, text, nan, 0, bytes=text.encode())
        scores.append(logprob)
    return scores
