"""The intake actor: it turns text into token ids, and requests away that cannot be served."""

from collections.abc import Iterator

from rekindle.engine.preparing import Preparer
from rekindle.messages import Admit, Cancel, Message, Rejected, Submit, Withdraw


class Intake:
    """Tokenizes and validates requests.

    Args:
        preparer: makes them.
    """

    def __init__(self, preparer: Preparer):
        self._preparer = preparer

    def handle(self, message: Message) -> Iterator[Message]:
        """Answer Submit with Admit or Rejected, and Cancel with Withdraw, which thereby stay in order."""
        match message:
            case Submit(request_id):
                try:
                    yield Admit(self._preparer.request(message))
                except Exception as error:  # any error is one request's, and the others go on
                    yield Rejected(request_id, error)
            case Cancel(request_id):
                yield Withdraw(request_id)
            case _:
                raise TypeError(f"the intake takes Submit and Cancel, got {message!r}")
