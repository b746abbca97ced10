"""The detokenizer actor: token ids become text, piece by piece, never splitting a character."""

from collections.abc import Iterator

from rekindle.messages import Message, Output, Text
from rekindle.text.incremental import IncrementalDecoder
from rekindle.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns outputs into text.

    Args:
        tokenizer: None for a model that is asked by token ids alone; its text is always empty.
    """

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer
        self._decoders: dict[int, IncrementalDecoder] = {}

    def handle(self, message: Message) -> Iterator[Message]:
        """Output becomes Text."""
        if not isinstance(message, Output):
            raise TypeError(f"the detokenizer takes Output, got {message!r}")
        yield Text(message.request_id, self._text(message), message.token_ids, message.end)

    def _text(self, output: Output) -> str:
        if self._tokenizer is None:
            return ""
        decoder = self._decoders.get(output.request_id)
        if decoder is None:
            decoder = self._decoders[output.request_id] = IncrementalDecoder(self._tokenizer)
        text = "".join(decoder.push(token) for token in output.token_ids)
        if output.end is not None:
            text += decoder.finish()
            del self._decoders[output.request_id]
        return text
