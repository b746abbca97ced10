"""What `generate` accepts as a prompt, told apart where it is given."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.errors import InvalidRequest
from rekindle.messages import Prompt
from rekindle.request import check_token_ids
from rekindle.text.chat import check_messages

Messages = Sequence[Mapping[str, Any]]
TokenIds = Sequence[int]


def one_prompt(prompt: str | Messages | None, token_ids: TokenIds | None, vocab_size: int) -> Prompt:
    """The prompt of one request.

    Raises:
        InvalidRequest: it is empty or of no accepted kind, or not exactly one of the two was given.
    """
    prompts, batch = all_prompts(prompt, token_ids, vocab_size)
    if batch:
        raise InvalidRequest("one prompt was expected, got a list of them; use generate() for a batch")
    return prompts[0]


def all_prompts(
    prompt: str | Messages | Sequence[str] | Sequence[Messages] | None,
    token_ids: TokenIds | Sequence[TokenIds] | None,
    vocab_size: int,
) -> tuple[list[Prompt], bool]:
    """The prompts of a call, and whether they came as a batch.

    Raises:
        InvalidRequest: one is empty or of no accepted kind, or not exactly one of the two was given.
    """
    if (prompt is None) == (token_ids is None):
        raise InvalidRequest("give either a prompt or token_ids, and not both")
    if token_ids is not None:
        if _is_list(token_ids) and len(token_ids) and all(_is_list(ids) for ids in token_ids):
            return [check_token_ids("token_ids", ids, vocab_size) for ids in token_ids], True  # type: ignore[arg-type]
        return [check_token_ids("token_ids", token_ids, vocab_size)], False  # type: ignore[arg-type]
    if _is_list(prompt) and len(prompt) and not isinstance(prompt[0], Mapping):  # type: ignore[arg-type, index]
        return [_text_or_messages(item) for item in prompt], True  # type: ignore[union-attr]
    return [_text_or_messages(prompt)], False


def _text_or_messages(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("the prompt is empty; it needs at least one character")
        return prompt
    if not _is_list(prompt):
        raise InvalidRequest(
            f"a prompt is a str, a list of {{role, content}} messages, or a list of either; got {prompt!r:.80}"
        )
    check_messages(prompt)
    return list(prompt)


def _is_list(value: Any) -> bool:
    """Arrays are lists too, but a numpy integer, which has an array's methods, is not."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return getattr(value, "ndim", 0) > 0
