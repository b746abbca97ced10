"""The intake actor: admits requests, each caller's in order of arrival."""

from collections import deque
from collections.abc import Iterator

from rekindle.core.engine.preparer import RequestPreparer
from rekindle.core.errors import RequestCancelled
from rekindle.core.messages import Admit, Cancel, Message, Rejected, Submit, Tokenize, Tokenized, Withdraw
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.request import Request


class Intake:
    """The intake actor: admits valid requests and rejects the others.

    It prepares quick requests itself; the tokenizer prepares the others. At most one request per caller is with the
    tokenizer, and later ones of the caller wait for their turn, so that a caller's requests keep their order. If a
    request is cancelled while it is with the tokenizer, the tokenizer's answer is dropped.

    Args:
        preparer: prepares quick requests.
        at_once: largest number of requests with the tokenizer at once.
    """

    def __init__(self, preparer: RequestPreparer, at_once: int):
        self._preparer = preparer
        self._at_once = at_once
        # Requests not yet admitted, by caller, oldest first. The first caller has the next turn.
        self._queues: dict[int, deque[Submit]] = {}
        self._away: set[int] = set()  # requests with the tokenizer

    def handle(self, message: Message) -> Iterator[Message]:
        """Answer Submit with Admit or Rejected, possibly later, and Cancel with Rejected, or Withdraw if admitted."""
        match message:
            case Submit(request_id, caller=caller):
                if caller not in self._queues and self._preparer.is_quick(message):
                    yield _answer(message, self._preparer.outcome(message))
                else:
                    self._queues.setdefault(caller, deque()).append(message)
            case Tokenized(request_id, outcome):
                self._away.remove(request_id)
                submit = self._waiting(request_id)
                if submit is not None:
                    self._leave(submit)
                    yield _answer(submit, outcome)
            case Cancel(request_id):
                submit = self._waiting(request_id)
                if submit is not None:
                    self._leave(submit)
                    yield Rejected(request_id, RequestCancelled("the request was cancelled"))
                else:
                    yield Withdraw(request_id)
            case _:
                raise wrong_receiver("intake", message)
        yield from self._fill_tokenizer()

    def _waiting(self, request_id: int) -> Submit | None:
        """Return the request with this id if it is neither admitted nor rejected, else None."""
        waiting = (submit for queue in self._queues.values() for submit in queue)
        return next((submit for submit in waiting if submit.request_id == request_id), None)

    def _leave(self, submit: Submit) -> None:
        queue = self._queues[submit.caller]
        queue.remove(submit)
        if not queue:
            del self._queues[submit.caller]

    def _fill_tokenizer(self) -> Iterator[Message]:
        """Send requests to the tokenizer up to its limit, of all callers in turn."""
        for caller, queue in tuple(self._queues.items()):
            if len(self._away) == self._at_once:
                return
            if queue[0].request_id not in self._away:
                self._away.add(queue[0].request_id)
                self._queues[caller] = self._queues.pop(caller)  # now behind all other callers
                yield Tokenize(queue[0])


def _answer(submit: Submit, outcome: Request | Exception) -> Message:
    if isinstance(outcome, Exception):
        return Rejected(submit.request_id, outcome)
    return Admit(outcome, submit.started)
