"""Prompts as dicts, with the fields of vLLM's."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class _More(TypedDict, total=False):
    multi_modal_data: Mapping[str, Any] | None
    cache_salt: str | None


class TextPrompt(_More):
    """A text with its images, as `{"prompt": text}`.

    Attributes:
        prompt: the text.
        multi_modal_data: the images, as `{"image": image}` or a list of them.
        cache_salt: the salt of its cached prefixes.
    """

    prompt: str


class TokensPrompt(_More):
    """The token ids of a prompt with its images; other keys as in `TextPrompt`.

    Attributes:
        prompt_token_ids: the ids.
    """

    prompt_token_ids: Sequence[int]
