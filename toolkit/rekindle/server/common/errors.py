"""Errors in the form of OpenAI's API, or of the API under a path."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from rekindle.core.errors import (
    ConstraintFailed,
    InvalidBatch,
    InvalidRequest,
    LogitsNotFinite,
    NoWeights,
    OutOfMemory,
    PromptTooLong,
    QueueFull,
    RequestCancelled,
    SessionClosed,
    SessionError,
    StepTimeout,
    WeightsChanged,
)
from rekindle.server.tracing.log import LOG

MAX_LISTED: Final = 10
"""Maximum number of bad prompts listed in an error."""

INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
PARTING_SECONDS = 1.0
"""Seconds for sending the error about a shutdown to a client."""
NO_TEMPLATE: Final = (
    "the model has no chat template, so it takes texts alone, at /v1/completions; for chats, the server needs the "
    "template of the model's family: rekindle serve --chat-template FILE or NAME, or chat_template in the model's table"
)
RETRY_SECONDS = 1
"""Value of the `Retry-After` header when the queue is full, in seconds."""
ENCODINGS: Final = "gzip, deflate"
"""The encodings of bodies that the server decodes."""
HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"www-authenticate": "Bearer"},  # RFC 9110, 11.6.1
    HTTPStatus.TOO_MANY_REQUESTS: {"retry-after": str(RETRY_SECONDS)},
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: {"accept": "application/json", "accept-encoding": ENCODINGS},  # 15.5.16
}
"""The headers of an error by status."""
ANTHROPIC_KINDS: Final[Mapping[int, str]] = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
"""The error type of Anthropic's API by status."""


class ApiError(Exception):
    """Error response of the API.

    Attributes:
        status: the HTTP status.
        message: the reason, for an invalid field with the expected and the received value.
        kind: the error type of OpenAI's API.
        param: the field of the body at fault; None if no single field is.
        code: the machine-readable error code; None if there is none.
        overflow: the tokens of a prompt that is too long, and the most tokens of a prompt; None for another error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        *,
        param: str | None = None,
        code: str | None = None,
        overflow: tuple[int, int] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.overflow = overflow

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response in addition to its content type."""
        return dict(HEADERS.get(self.status, {}))


def shutdown_error() -> ApiError:
    """Return the error for requests cut off by a shutdown of the server."""
    return unavailable("the server shut down before the answer was complete; retry")


def invalid_field(param: str | None, message: str) -> ApiError:
    """Return the error for a body with an invalid field."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def api_error_of(error: Exception, fields: Mapping[str, str]) -> ApiError:
    """Return the API error for an exception. Only errors caused by the client keep their message.

    Args:
        fields: the field of the body for each keyword of the session call.
    """
    match error:
        case ApiError():
            return error
        case InvalidBatch() if error.errors:
            return _invalid_batch(error, fields)
        case InvalidRequest() | ConstraintFailed():
            return _invalid(error, str(error), fields)
        case QueueFull():
            message = "the waiting queue is full; retry later"
            return ApiError(HTTPStatus.TOO_MANY_REQUESTS, message, "rate_limit_error", code="rate_limit_exceeded")
        case WeightsChanged():
            return unavailable("the model's weights were replaced before the answer was complete; retry")
        case RequestCancelled():
            return unavailable("the request was cancelled where the model runs; retry")
        case LogitsNotFinite():
            message = "the model computed NaN or infinity for this request"
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, "internal_server_error")
        case OutOfMemory():
            return unavailable("the device that runs the model had no memory for this request; retry later")
        case StepTimeout():
            return unavailable("the device that runs the model does not respond; retry later")
        case NoWeights():
            return unavailable("the model has no weights yet; retry later")
        case SessionClosed():
            return unavailable("the model is being shut down")
        case SessionError():
            return unavailable("the engine that runs the model has failed")
    LOG.error("a request failed in the server: %s", type(error).__name__)  # its message may contain a client's text
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed at this request", "internal_server_error")


def without_copies(error: Exception, copies: int) -> Exception:
    """Return the error of a batch as of its different prompts, each of which is in the batch `copies` times."""
    if copies == 1 or not isinstance(error, InvalidBatch):
        return error
    errors = {index // copies: each for index, each in error.errors.items()}
    return InvalidBatch(str(error), errors, error.total // copies)


def _invalid_batch(error: InvalidBatch, fields: Mapping[str, str]) -> ApiError:
    """Return the API error for bad prompts, which are named by their place in the field of the prompts."""
    first, field = next(iter(error.errors.values())), fields.get("prompt")
    if field is None:
        return _invalid(first, str(error), fields)
    if error.total == 1:
        return _invalid(first, str(first), fields)
    texts = [f"{field}[{index}]: {each}" for index, each in error.errors.items()]
    more = [f"and {len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else []
    return _invalid(first, "; ".join([*texts[:MAX_LISTED], *more]), fields)


def _invalid(error: Exception, message: str, fields: Mapping[str, str]) -> ApiError:
    keyword = error.parameter if isinstance(error, InvalidRequest) else None
    if keyword == "chat_template":
        return ApiError(HTTPStatus.BAD_REQUEST, NO_TEMPLATE, param=fields.get("prompt", "messages"))
    param = None if keyword is None else fields.get(keyword, keyword)
    if not isinstance(error, PromptTooLong):
        return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)
    overflow = None if error.tokens is None or error.most is None else (error.tokens, error.most)
    if overflow is not None:  # in the words of OpenAI's API: by them, clients know to shorten a prompt
        field = param or "prompt"
        words = (
            f"This model's maximum context length is {error.most} tokens for a prompt. However, your {field} resulted "
            f"in {error.tokens} tokens. Please reduce the length of the {field}."
        )
        message = words if message == str(error) else f"{words} ({message})"  # the second names one of several prompts
    code = "context_length_exceeded"
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code=code, overflow=overflow)


def unavailable(message: str) -> ApiError:
    """Return the error for requests that cannot be served for now."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, UNAVAILABLE)


def error_object(error: ApiError, path: str) -> dict[str, Any]:
    """Return the JSON body of an error for a request to `path`."""
    if is_anthropic(path):
        return anthropic_error(error)
    return ollama_error(error) if is_ollama(path) else error.body


def is_anthropic(path: str) -> bool:
    """Return True for paths of Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def is_ollama(path: str) -> bool:
    """Return True for paths of Ollama's API."""
    return path == "/api" or path.startswith("/api/")


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Anthropic's API."""
    other = "invalid_request_error" if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    kind = ANTHROPIC_KINDS.get(error.status, other)
    details = {} if error.code is None else {"details": {"error_code": error.code}}
    message = error.message
    if error.overflow is not None:  # coding agents find these words, and shorten the conversation
        message = "prompt is too long: {} tokens > {} maximum".format(*error.overflow)
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Ollama's API."""
    if error.overflow is not None:
        return {"error": "the input length exceeds the context length: {} tokens > {}".format(*error.overflow)}
    return {"error": error.message}
