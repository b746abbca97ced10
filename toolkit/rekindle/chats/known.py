"""What of a conversation has been computed already, so that its next turn goes on with the very same tokens."""

from dataclasses import dataclass

from rekindle.core.messages import Continued, Prompt
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation

MOST = 64
"""How many beginnings are remembered: the latest 32 turns."""


@dataclass(frozen=True, slots=True)
class Known:
    """Beginnings of a conversation whose tokens are known: each turn's prompt, and that with its answer.

    A model may write a text in other tokens than its tokenizer would, and only the same tokens are found in the prefix
    cache. So a prompt that begins with a known text begins with its tokens, and the rest alone is tokenized. Known
    texts end where a turn or an answer does, which is where a tokenizer parts tokens too. A chat template that writes
    earlier turns in another way, as those that leave out reasoning, goes on from what they have in common.

    Attributes:
        beginnings: (text with special tokens, token ids), oldest first.
    """

    beginnings: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def prompt(self, rendered: str) -> Prompt | None:
        """Return the prompt of a rendered conversation that begins with the longest known text; None if none does."""
        fitting = [known for known in self.beginnings if rendered.startswith(known[0])]
        if not fitting:
            return None
        text, token_ids = max(fitting, key=lambda known: len(known[1]))
        return Continued(token_ids, rendered[len(text) :])

    def after(self, rendered: str, answer: Generation, tokenizer: Tokenizer) -> "Known":
        """Return what is known once a rendered conversation was answered."""
        said = rendered + tokenizer.decode(answer.token_ids, skip_special_tokens=False)
        new = ((rendered, answer.prompt_token_ids), (said, answer.prompt_token_ids + answer.token_ids))
        return Known((*self.beginnings, *new)[-MOST:])


NOTHING = Known()
"""The beginnings of a conversation that has not begun."""
