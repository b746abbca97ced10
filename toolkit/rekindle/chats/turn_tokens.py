"""Tokens of earlier turns, so that the next turn of a conversation continues exactly the same tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.core.messages import Continued, Illustrated, KnownTokens, Prompt
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation

MOST = 64
"""Maximum number of stored prefixes: two per turn for the latest 32 turns."""


@dataclass(frozen=True, slots=True)
class TurnPrefix:
    """Beginning of a conversation with its tokens.

    Attributes:
        text: the text with special tokens, and a placeholder for each image.
        images: the images with their details.
        token_ids: the tokens of both.
    """

    text: str
    images: tuple[tuple[Any, Any], ...]
    token_ids: tuple[int, ...]

    def begins(self, rendered: str, images: tuple[tuple[Any, Any], ...]) -> bool:
        """Return True if a conversation, of a text and images, begins with this."""
        return rendered.startswith(self.text) and images[: len(self.images)] == self.images


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Prefixes of a conversation with their tokens: the prompt of each turn, and the prompt with its answer.

    A model may generate a text as other tokens than its tokenizer would produce, and the prefix cache matches tokens. A
    prompt with a stored prefix therefore begins with the stored tokens, and only the rest is tokenized. Stored prefixes
    end at the end of a prompt or an answer, where tokenizers split text too. If the chat template renders earlier turns
    differently later, such as without their reasoning, the longest stored prefix that still matches is used.

    Attributes:
        prefixes: the prefixes, oldest first.
    """

    prefixes: tuple[TurnPrefix, ...] = ()

    def prompt(self, rendered: str, images: tuple[tuple[Any, Any], ...] = ()) -> Prompt | None:
        """Return the prompt of a rendered conversation with the tokens of its longest stored prefix; None without one.

        Args:
            rendered: the text of the conversation, with a placeholder for each image.
            images: the images with their details.
        """
        matches = [prefix for prefix in self.prefixes if prefix.begins(rendered, images)]
        if not matches:
            return None
        longest = max(matches, key=lambda prefix: len(prefix.token_ids))
        more, new_images = rendered[len(longest.text) :], images[len(longest.images) :]
        return Continued(
            KnownTokens(longest.token_ids, longest.images) if longest.images else longest.token_ids,
            Illustrated(more, new_images) if new_images else more,
        )

    def as_json(self) -> Mapping[str, Any] | None:
        """Return the longest prefix without images as JSON; None without one."""
        texts = [prefix for prefix in self.prefixes if not prefix.images]
        if not texts:
            return None
        longest = max(texts, key=lambda prefix: len(prefix.token_ids))
        return {"text": longest.text, "token_ids": list(longest.token_ids)}

    @classmethod
    def of_json(cls, saved: Any, vocabulary: int) -> "TurnTokens":
        """Return the prefix of `as_json`; none for a damaged one.

        Args:
            saved: the JSON.
            vocabulary: the number of tokens.
        """
        match saved:
            case {"text": str(text), "token_ids": [*ids]} if all(
                type(token) is int and 0 <= token < vocabulary for token in ids
            ):
                return cls((TurnPrefix(text, (), tuple(ids)),))
        return NO_TOKENS

    def with_turn(
        self, rendered: str, images: tuple[tuple[Any, Any], ...], answer: Generation, tokenizer: Tokenizer
    ) -> "TurnTokens":
        """Return the stored prefixes, with a rendered conversation and the same with its answer added."""
        text = rendered + tokenizer.decode(answer.token_ids, skip_special_tokens=False)
        new = (
            TurnPrefix(rendered, images, answer.prompt_token_ids),
            TurnPrefix(text, images, answer.prompt_token_ids + answer.token_ids),
        )
        return TurnTokens((*self.prefixes, *new)[-MOST:])


NO_TOKENS = TurnTokens()
"""Prefixes of a new conversation."""
