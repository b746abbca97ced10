"""Traces of requests: an id in log lines and answers, and a span of OpenTelemetry if its API is installed."""

import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rekindle.results.generation import Generation
from rekindle.server.tracing.log import LOG, trace_id

REQUEST_IDS: Final = (b"x-request-id", b"request-id")
"""Headers of an answer with the id of its trace: OpenAI's and Anthropic's."""
REQUESTS: Final = LOG.getChild("requests")
"""The logger of one line for each request."""
_PARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""The header `traceparent` (W3C Trace Context, level 1)."""


class Tracing:
    """Middleware for the trace of each request.

    The trace goes on from the client's header `traceparent`.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = perf_counter(), 0
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with _span(scope["method"], scope["path"], headers) as (trace, span):

            async def send_with_id(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    message = {
                        **message,
                        "headers": [*message.get("headers", ()), *((name, trace.encode()) for name in REQUEST_IDS)],
                    }
                await send(message)

            token = trace_id.set(trace)
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                if span is not None:
                    span.set_attribute("http.response.status_code", status)
                if REQUESTS.isEnabledFor(logging.INFO):
                    seconds = perf_counter() - begin
                    path = scope["path"][:200]
                    REQUESTS.info("%s %r %s in %.3f s", scope["method"], path, status or "unanswered", seconds)
                trace_id.reset(token)


def record(model: str, generations: Sequence[Generation]) -> None:
    """Add the figures of finished generations to the current span, by OpenTelemetry's names for generative models."""
    api = _api()
    if api is None:
        return
    span = api.get_current_span()
    if not span.is_recording():
        return
    first = min(generations, key=lambda each: each.timings.first_token)
    span.set_attributes(
        {
            "gen_ai.provider.name": "rekindle",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [each.finish_reason for each in generations],
            "gen_ai.usage.input_tokens": sum(each.usage.prompt_tokens for each in generations),
            "gen_ai.usage.output_tokens": sum(each.usage.completion_tokens for each in generations),
            "rekindle.cached_tokens": sum(int(each.cached_tokens) for each in generations),
            "rekindle.queued_seconds": first.timings.queued,
            "rekindle.first_token_seconds": first.timings.first_token,
        }
    )


@contextmanager
def _span(method: str, path: str, headers: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Open a span in a block, and yield the id of its trace and the span; None without OpenTelemetry."""
    api = _api()
    parent = _PARENT.fullmatch(headers.get("traceparent", ""))
    fresh = parent[1] if parent else secrets.token_hex(16)
    if api is None:
        yield fresh, None
        return
    from opentelemetry.propagate import extract

    attributes = {"http.request.method": method, "url.path": path}
    options = {"context": extract(headers), "kind": api.SpanKind.SERVER, "attributes": attributes}
    with api.get_tracer("rekindle").start_as_current_span(f"{method} {path}", **options) as span:
        context = span.get_span_context()
        yield api.format_trace_id(context.trace_id) if context.is_valid else fresh, span


def _api() -> Any:
    """Return OpenTelemetry's API for traces, or None if it is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace
