"""The end of an answer after its first tool call."""

from collections.abc import Sequence

from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.formats import format_of
from rekindle.formats.responses.reading.reader import TemplateReading


class FirstCall:
    """Watcher of one answer for its first complete tool call. The cost of a token is that of the answer's parser.

    Args:
        tokenizer: the model's tokenizer.
        prompt: the token ids of the prompt.
        names: the names of the tools.
        goes_on: see `IncrementalDecoder`.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], names: Sequence[str], goes_on: bool) -> None:
        tools = [{"name": name} for name in names]
        self._reading = TemplateReading(format_of(tokenizer), tokenizer, prompt, tools=tools, goes_on=goes_on)
        self._decoder = IncrementalDecoder(tokenizer, goes_on=goes_on)

    def push(self, token: int) -> int | None:
        """Add the next token; return the number of tokens up to the end of the first call, or None before."""
        self._reading.push(self._decoder.push(token), [token])
        return self._reading.first_call_tokens()
