"""Bodies of completions, with prompts as texts or as token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.server.common.call import Call
from rekindle.server.common.fields import Fields
from rekindle.server.common.prompts import Text, texts
from rekindle.server.common.sampling import NEUTRAL, choice_count, repeat_prompts, sampling, streaming, token_reports

DEFAULT_MAX_TOKENS = 16
"""The most tokens to generate if the body has no limit, as in OpenAI's API."""
NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {**NEUTRAL, "suffix": ("",)}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for a completion.

    Attributes:
        call: the call of the session.
        prompts: the prompt of each choice; some may be texts and others lists of token ids.
        echo: whether the answer repeats the prompt.
        logprobs: the number of alternatives to each token; None for no log-probabilities.
    """

    call: Call
    prompts: Sequence[Text]
    echo: bool
    logprobs: int | None

    @property
    def is_mixed(self) -> bool:
        """True if the prompts of the call are both texts and lists of token ids, not supported by a session."""
        return len({type(each) for each in self.prompts}) > 1


def read_completion(body: Fields, most: int) -> CompletionRequest:
    """Return the completion requested by a body.

    Args:
        body: the fields of the body.
        most: the most prompts.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the answer.
    """
    prompts = texts(body, "prompt", most)
    options, fields = sampling(body, "max_tokens")
    options.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    if not body.flag("add_special_tokens", True):
        options["add_special_tokens"], fields["add_special_tokens"] = False, "add_special_tokens"
    echo, logprobs, n = body.flag("echo"), body.take("logprobs", int), choice_count(body)
    if len(prompts) * n > most:
        body.refuse("n", f"times the number of prompts must be at most {most}, got {len(prompts) * n}")
    if logprobs is not None:
        options["logprobs"], fields["logprobs"] = logprobs, "logprobs"
        if echo:
            options["prompt_logprobs"], fields["prompt_logprobs"] = logprobs, "logprobs"
    reports, stream = token_reports(body, options, fields), streaming(body)
    all_prompts, samples = repeat_prompts(list(prompts), options, n)
    # A single prompt is passed alone, so its error is not wrapped in InvalidBatch.
    prompt: Any = all_prompts if len(all_prompts) > 1 else all_prompts[0]
    if any(isinstance(each, str) for each in all_prompts):
        call = Call(prompt, options, samples, n, fields, stream, reports)
    else:
        call = Call(None, {**options, "token_ids": prompt}, samples, n, fields, stream, reports)
    body.finish(NEUTRAL_FIELDS)
    return CompletionRequest(call, [prompt for prompt in prompts for _ in range(n)], echo, logprobs)
