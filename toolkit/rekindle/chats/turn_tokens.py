"""Tokens of earlier turns, so that the next turn of a conversation continues exactly the same tokens."""

from dataclasses import dataclass

from rekindle.core.messages import Continued, Prompt
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation

MOST = 64
"""Maximum number of stored prefixes: two per turn for the latest 32 turns."""


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Prefixes of a conversation with their tokens: the prompt of each turn, and the prompt with its answer.

    A model may generate a text as other tokens than its tokenizer would produce, and the prefix cache matches tokens. A
    prompt with a stored prefix therefore begins with the stored tokens, and only the rest is tokenized. Stored prefixes
    end at the end of a prompt or an answer, where tokenizers split text too. If the chat template renders earlier turns
    differently later, such as without their reasoning, the longest stored prefix that still matches is used.

    Attributes:
        prefixes: pairs of (text with special tokens, token ids), oldest first.
    """

    prefixes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def prompt(self, rendered: str) -> Prompt | None:
        """Return the prompt of a rendered conversation with the tokens of its longest stored prefix; None without one.

        Args:
            rendered: the text of the conversation.
        """
        matches = [prefix for prefix in self.prefixes if rendered.startswith(prefix[0])]
        if not matches:
            return None
        text, token_ids = max(matches, key=lambda prefix: len(prefix[1]))
        return Continued(token_ids, rendered[len(text) :])

    def with_turn(self, rendered: str, answer: Generation, tokenizer: Tokenizer) -> "TurnTokens":
        """Return the stored prefixes, with a rendered conversation and the same with its answer added."""
        text = rendered + tokenizer.decode(answer.token_ids, skip_special_tokens=False)
        new = ((rendered, answer.prompt_token_ids), (text, answer.prompt_token_ids + answer.token_ids))
        return TurnTokens((*self.prefixes, *new)[-MOST:])


NO_TOKENS = TurnTokens()
"""Prefixes of a new conversation."""
