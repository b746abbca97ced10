"""Each request has a trace: in its answer's headers, in log lines, and from the client's header if it has one."""

import logging
import re

import pytest

from rekindle.server import app
from rekindle.server.tracing.log import LOG, TraceFormatter
from rekindle.server.tracing.spans import REQUESTS
from rekindle.session.session import Session
from tests.unit.asgi import ask

pytestmark = pytest.mark.anyio

BODY = {"prompt": [3, 1, 4], "max_tokens": 2}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_an_answer_names_its_trace_which_goes_on_from_the_clients(texts: Session) -> None:
    server = app(texts)
    own = {(await ask(server, "/v1/completions", BODY)).headers["x-request-id"] for _ in range(2)}
    assert len(own) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in own)
    for header, goes_on in ((f"00-{TRACE}-00f067aa0ba902b7-01", True), (f"00-{'0' * 32}-00f067aa0ba902b7-01", False)):
        reply = await ask(server, "/v1/completions", {**BODY, "stream": True}, headers={"traceparent": header})
        assert (reply.headers["x-request-id"] == TRACE) == goes_on
    headers = (await ask(server, "/v1/nothing")).headers
    assert headers["request-id"] == headers["x-request-id"]


async def test_each_line_of_a_request_has_its_trace(texts: Session, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Lines()
    handler.setFormatter(TraceFormatter())
    LOG.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger=REQUESTS.name):
            await ask(app(texts), "/v1/completions", BODY, headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
            LOG.warning("outside")
    finally:
        LOG.removeHandler(handler)
    request, outside = lines
    assert re.fullmatch(rf"POST '/v1/completions' 200 in \d+\.\d{{3}} s trace_id={TRACE}", request)
    assert outside == "outside"
