"""A browser is shown the dashboard of each open model, once it has a key."""

import re
from base64 import b64encode
from hashlib import sha256
from math import inf

import pytest

from rekindle.results.markdown import answer_html
from rekindle.server import app
from rekindle.server.application import application
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.limits import Limits
from rekindle.server.models.gate import Gate
from rekindle.server.models.pool import ModelPool
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.session.session import Session
from tests.unit.asgi import ask
from tests.unit.server.test_server_pool import FakeSource

pytestmark = pytest.mark.anyio


async def test_the_page_is_for_all_and_the_figures_are_for_those_with_a_key(texts: Session) -> None:
    server = app(texts, name="mine", api_keys=["key"])
    page = await ask(server, "/", headers={"accept": "text/html,*/*"})
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "mine" not in page.body.decode()
    assert "api/chat" in page.body.decode()
    other = await ask(server, "/", headers={"accept": "*/*"})
    assert (other.body, (await ask(server, "/", method="HEAD")).status) == (b"Rekindle is running", 200)
    assert (await ask(server, "/dashboard")).status == 401
    await texts.generate("Hello", max_tokens=3)
    boards = (await ask(server, "/dashboard", headers={"authorization": "Bearer key"})).body.decode()
    assert "mine" in boards
    assert "time to the first token" in boards


async def test_an_answer_is_rendered_as_in_a_card_for_those_with_a_key(texts: Session) -> None:
    server, text = app(texts, api_keys=["key"]), "**Two** ways:\n\n<script>1</script>"
    assert (await ask(server, "/dashboard/answer", text.encode(), method="POST")).status == 401
    headers = {"authorization": "Bearer key"}
    reply = await ask(server, "/dashboard/answer", text.encode(), method="POST", headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.body.decode() == answer_html(text)
    large = await ask(server, "/dashboard/answer", b"x" * 100_000, method="POST", headers=headers)
    assert large.status == 413


async def test_models_that_are_closed_are_named() -> None:
    pool = ModelPool({"a": FakeSource(0.4), "<b>": FakeSource(0.4)}, inf, 1.0)
    async with pool.running():
        async with pool.use("a"):
            pass
        server = application(Service(pool, Limits(), Gate()), Access(), KeptResponses())
        boards = (await ask(server, "/dashboard")).body.decode()
    assert boards.count("tokens per second</div>") == 1
    assert "closed until the next request: &lt;b&gt;" in boards


async def test_the_page_runs_its_own_script_alone_and_loads_nothing_from_elsewhere(texts: Session) -> None:
    page = await ask(app(texts), "/", headers={"accept": "text/html"})
    html, policy = page.body.decode(), page.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "connect-src 'self';" in policy
    assert '<link rel="icon" href="data:' in html
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(address.startswith("data:") or ":" not in address for address in addresses), addresses
    assert not re.search(r"\son\w+=|javascript:", html), "the policy would stop such handlers"
