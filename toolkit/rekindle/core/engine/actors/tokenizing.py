"""The tokenizer actor: prepares requests in worker threads, since tokenizing may take seconds."""

from anyio import to_thread

from rekindle.core.engine.preparer import RequestPreparer
from rekindle.core.messages import Message, Tokenize, Tokenized
from rekindle.core.messages.message import wrong_receiver


class Tokenizing:
    """The tokenizer actor: tokenizes and validates requests, several at once.

    Args:
        preparer: prepares the requests.
        at_once: number of requests at once, each in a worker thread.
    """

    def __init__(self, preparer: RequestPreparer, at_once: int):
        self._preparer = preparer
        self.at_once = at_once

    async def handle(self, message: Message) -> list[Message]:
        """Answer Tokenize with Tokenized."""
        if not isinstance(message, Tokenize):
            raise wrong_receiver("tokenizer", message)
        submit = message.submit
        outcome = await to_thread.run_sync(self._preparer.outcome, submit, abandon_on_cancel=True)
        return [Tokenized(submit.request_id, outcome)]
