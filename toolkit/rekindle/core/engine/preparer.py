"""The preparer of requests, for the intake and the tokenizer."""

from typing import Protocol

from rekindle.core.messages import Submit
from rekindle.core.request.request import Request


class RequestPreparer(Protocol):
    """Turns submissions into requests; `rekindle.assembly.preparing.preparer.Preparer` does it for a model."""

    def is_quick(self, submit: Submit) -> bool:
        """Return True if `outcome` takes less than a millisecond."""

    def outcome(self, submit: Submit) -> Request | Exception:
        """Return the request of a submission, or its error."""
