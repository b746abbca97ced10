"""End tokens of a turn, by text."""

from collections.abc import Mapping
from typing import Final

END_TOKENS: Final = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    *("</s>", "<|return|>", "<|call|>", "<|end|>", "<end_of_turn>", "<turn|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "<|calls|>", "<|flush|>", "<end_of_utterance>", "<|tool_response>"),
)
"""End tokens in all supported families."""
_MESSAGE_END, _TURN_ENDS = "<|end|>", {"<|return|>", "<|call|>"}
"""In formats with several messages in one answer (harmony), a message end does not end the turn."""


def end_ids(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of a vocabulary's end tokens, in any family.

    Checkpoints often declare one of several end tokens. llama.cpp finds the others by text, too.

    Args:
        vocabulary: token ids by text.
    """
    present = {text for text in END_TOKENS if text in vocabulary}
    if present >= _TURN_ENDS:
        present.discard(_MESSAGE_END)
    return frozenset(vocabulary[text] for text in present)
