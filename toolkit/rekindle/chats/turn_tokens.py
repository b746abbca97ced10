"""Tokens of earlier turns, so that the next turn of a conversation continues the very same tokens."""

from dataclasses import dataclass

from rekindle.core.messages import Continued, Prompt
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation

MOST = 64
"""Maximal number of stored prefixes: two per turn for the latest 32 turns."""


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Prefixes of a conversation with their tokens: the prompt of each turn, and the prompt with its answer.

    A model may write a text in other tokens than its tokenizer would produce, and the prefix cache matches tokens. A
    prompt with a stored prefix therefore begins with the stored tokens, and only the rest is tokenized. Stored prefixes
    end at the end of a turn or an answer, where tokenizers split text too. If a chat template renders earlier turns
    differently, such as without their reasoning, the longest prefix in common is used.

    Attributes:
        prefixes: pairs of (text with special tokens, token ids), oldest first.
    """

    prefixes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def prompt(self, rendered: str) -> Prompt | None:
        """Return the prompt of a rendered conversation from its longest stored prefix; None without one."""
        matches = [prefix for prefix in self.prefixes if rendered.startswith(prefix[0])]
        if not matches:
            return None
        text, token_ids = max(matches, key=lambda prefix: len(prefix[1]))
        return Continued(token_ids, rendered[len(text) :])

    def with_turn(self, rendered: str, answer: Generation, tokenizer: Tokenizer) -> "TurnTokens":
        """Return the prefixes extended by a rendered conversation and its answer."""
        text = rendered + tokenizer.decode(answer.token_ids, skip_special_tokens=False)
        new = ((rendered, answer.prompt_token_ids), (text, answer.prompt_token_ids + answer.token_ids))
        return TurnTokens((*self.prefixes, *new)[-MOST:])


NO_TOKENS = TurnTokens()
"""Prefixes of a new conversation."""
