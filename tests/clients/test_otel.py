"""A request is a span of OpenTelemetry, with the figures of its answer, in the trace of its client."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rekindle.server import app
from rekindle.testing import fake_session
from tests.unit.asgi import ask

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_its_figures(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with fake_session() as session:
        body = {"prompt": [3, 1, 4], "max_tokens": 2, "stream": stream}
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        reply = await ask(app(session, name="m"), "/v1/completions", body, headers=headers)
    assert (reply.status, reply.headers["x-request-id"]) == (200, TRACE)
    (span,) = spans.get_finished_spans()
    assert span.name == "POST /v1/completions"
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == "00f067aa0ba902b7"
    figures = dict(span.attributes or {})
    assert figures["http.response.status_code"] == 200
    assert figures["gen_ai.request.model"] == "m"
    assert (figures["gen_ai.usage.input_tokens"], figures["gen_ai.usage.output_tokens"]) == (3, 2)
    assert figures["gen_ai.response.finish_reasons"] == ("length",)
    assert figures["rekindle.first_token_seconds"] > 0
