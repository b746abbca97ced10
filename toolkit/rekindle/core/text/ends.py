"""The tokens that end a turn, known by their texts."""

from collections.abc import Mapping
from typing import Final

ENDS: Final = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    *("</s>", "<|return|>", "<|call|>", "<|end|>", "<end_of_turn>", "<turn|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "<|calls|>", "<|flush|>", "<end_of_utterance>", "<|tool_response>"),
)
"""What a turn ends with, in the families that there are."""
_MESSAGE_END, _TURN_ENDS = "<|end|>", {"<|return|>", "<|call|>"}
"""Where an answer has several messages, as in harmony, only what ends the last one ends it."""


def end_ids(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of the tokens of a vocabulary whose texts end a turn in any family.

    Files often name one end of several. llama.cpp looks for the others by text too.

    Args:
        vocabulary: ids by token.
    """
    known = {text for text in ENDS if text in vocabulary}
    if known >= _TURN_ENDS:
        known.discard(_MESSAGE_END)
    return frozenset(vocabulary[text] for text in known)
