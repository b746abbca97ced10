"""Requests that are refused or fail, in the form that OpenAI's API has for them."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from rekindle.core.errors import (
    ConstraintFailed,
    InvalidBatch,
    InvalidRequest,
    LogitsNotFinite,
    PromptTooLong,
    QueueFull,
    RequestCancelled,
    SessionClosed,
    SessionError,
    StepTimeout,
    WeightsChanged,
)

_LOG = logging.getLogger("rekindle.server")
INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
PARTING_SECONDS = 1.0
"""How long a client may take to read that the server ends."""
RETRY_SECONDS = 1
"""How long a client is asked to wait where there was no room for its request."""


class Refused(Exception):
    """An answer that says why there is no other.

    Attributes:
        status: the HTTP status.
        message: what was expected, what came, and what to do.
        kind: the class of the error, as OpenAI's API names it.
        param: the field of the body that it is about; None if it is about no single one.
        code: a name for programs to know it by; None for none.
    """

    def __init__(
        self, status: int, message: str, kind: str = INVALID, *, param: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The body that is sent, as JSON holds it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer that it has beside its type."""
        return {"retry-after": str(RETRY_SECONDS)} if self.status == HTTPStatus.TOO_MANY_REQUESTS else {}


def ending() -> Refused:
    """Return what a client is told whose request did not end before the server did."""
    return _unavailable("the server ended before the answer did; ask again")


def invalid(param: str | None, message: str) -> Refused:
    """Return the refusal of a body, one field of which cannot be served."""
    return Refused(HTTPStatus.BAD_REQUEST, message, param=param)


def refused(error: Exception, fields: Mapping[str, str]) -> Refused:
    """Return what a client is told of an error. What it did not cause is told without the error's own words.

    Args:
        fields: the fields of the body by the keywords of the session that were made of them.
    """
    match error:
        case Refused():
            return error
        case InvalidBatch(errors=errors) if len(errors) == 1:
            return _invalid(next(iter(errors.values())), str(error), fields)
        case InvalidRequest() | ConstraintFailed():
            return _invalid(error, str(error), fields)
        case QueueFull():
            message = "the waiting queue is full; ask again later"
            return Refused(HTTPStatus.TOO_MANY_REQUESTS, message, "rate_limit_error", code="rate_limit_exceeded")
        case WeightsChanged():
            return _unavailable("the model's weights were replaced before the answer had ended; ask again")
        case RequestCancelled():
            return _unavailable("the request was cancelled where the model runs; ask again")
        case LogitsNotFinite():
            message = "the model computed NaN or infinity for this request"
            return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, message, "internal_server_error")
        case StepTimeout():
            return _unavailable("the device that runs the model does not answer; ask again later")
        case SessionClosed():
            return _unavailable("the model is being shut down")
        case SessionError():
            return _unavailable("the engine that runs the model has failed")
    _LOG.error("a request failed in the server: %s", type(error).__name__)  # its message may have what a client wrote
    return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed at this request", "internal_server_error")


def _invalid(error: Exception, message: str, fields: Mapping[str, str]) -> Refused:
    keyword = error.parameter if isinstance(error, InvalidRequest) else None
    param = None if keyword is None else fields.get(keyword, keyword)
    code = "context_length_exceeded" if isinstance(error, PromptTooLong) else None
    return Refused(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def _unavailable(message: str) -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, message, UNAVAILABLE)
