"""Errors in the form of the API under a path."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from rekindle.server.errors import ApiError

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
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Ollama's API."""
    return {"error": error.message}
