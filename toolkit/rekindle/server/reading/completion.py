"""The body of a completion of texts or of token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.server.reading.call import NEUTRAL, Call, draws, repeated, sampling, streaming
from rekindle.server.reading.fields import Fields

MOST_TOKENS = 16
"""How many tokens are generated where the body does not say, which is the default of OpenAI's API."""
ALIKE: Mapping[str, tuple[Any, ...]] = {**NEUTRAL, "suffix": ("",)}

Text = str | list[int]
"""A text, or the token ids of one."""


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A completion that is asked for.

    Attributes:
        call: of the session.
        prompts: those of the call, one for each choice that is given.
        echo: whether the prompt is given too.
        logprobs: how many alternatives to each token are given; None if no log-probabilities are.
        by_id: whether log-probabilities name tokens by their ids.
    """

    call: Call
    prompts: Sequence[Text]
    echo: bool
    logprobs: int | None
    by_id: bool


def completion_call(body: Fields, most: int) -> CompletionCall:
    """Return the call that a body asks for.

    Args:
        most: the most prompts.

    Raises:
        Refused: a field cannot be read, or might change the answer and is not known.
    """
    prompts = texts(body, "prompt", most)
    ask, fields = sampling(body, "max_tokens")
    ask.setdefault("max_tokens", MOST_TOKENS)
    if not body.flag("add_special_tokens", True):
        ask["add_special_tokens"], fields["add_special_tokens"] = False, "add_special_tokens"
    echo, logprobs, n = body.flag("echo"), body.take("logprobs", int), draws(body)
    if len(prompts) * n > most:
        body.refuse("n", f"times the number of prompts must be at most {most}, got {len(prompts) * n}")
    if logprobs is not None:
        ask["logprobs"], fields["logprobs"] = logprobs, "logprobs"
        if echo:
            ask["prompt_logprobs"], fields["prompt_logprobs"] = logprobs, "logprobs"
    by_id, stream = body.flag("return_tokens_as_token_ids"), streaming(body)
    if stream and echo and logprobs is not None:
        body.refuse("echo", "with logprobs is for answers that come as a whole; leave out stream")
    asked, draws_of_each = repeated(list(prompts), ask, n)
    given: Any = asked if len(asked) > 1 else asked[0]  # errors of one prompt are told as such
    if isinstance(asked[0], str):
        call = Call(given, ask, draws_of_each, n, fields, stream)
    else:
        call = Call(None, {**ask, "token_ids": given}, draws_of_each, n, fields, stream)
    body.finish(ALIKE)
    return CompletionCall(call, [prompt for prompt in prompts for _ in range(n)], echo, logprobs, by_id)


def texts(body: Fields, name: str, most: int, *, mixed: bool = False) -> list[Text]:
    """Take a field with a text, a list of texts, the token ids of a text, or a list of such, and return it as a list.

    Args:
        mixed: whether one list may have texts and token ids.

    Raises:
        Refused: it is something else, or has more than `most` texts.
    """
    given = body.any(name)
    if given is None:
        body.needed(name)
    if isinstance(given, str) or (isinstance(given, list) and given and all(type(each) is int for each in given)):
        return [given]
    alike = isinstance(given, list) and (
        all(isinstance(each, str) for each in given)
        or all(_is_ids(each) or (mixed and isinstance(each, str)) for each in given)
    )
    if not alike or not given:
        body.refuse(name, "must be a text, a list of texts, a list of token ids, or a list of such lists")
    if len(given) > most:
        body.refuse(name, f"must have at most {most} texts, got {len(given)}")
    return list(given)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(each) is int for each in value)
