"""Requests with images and large bodies wait for their client's turn, and leave nothing behind."""

import base64
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect

from rekindle.formats.images import sources
from rekindle.server import Limits, app
from rekindle.server.application import application
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import LARGE, Fields
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.shares import Shares
from rekindle.server.models.gate import Gate
from rekindle.server.models.served import OneModel
from rekindle.server.openai.chat.body import read_chat
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.session.session import Session
from tests.unit.asgi import Caller, ask
from tests.unit.images.bombs import png_of_bits
from tests.unit.scripted import Serve
from tests.unit.server.test_server_images import FORM, chat, url_part
from tests.waiting import until

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

pytestmark = pytest.mark.anyio


async def hold(shares: Shares, client: str, order: list[str], free: anyio.Event, amount: int = 1) -> None:
    """Take an amount, note the client, and hold the amount until an event."""
    async with shares.take(client, amount):
        order.append(client)
        await free.wait()


async def test_clients_get_their_shares_in_turn() -> None:
    shares, order = Shares(2, 2), list[str]()
    events = [anyio.Event() for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for client, event in zip("AAAABC", events, strict=True):
            tasks.start_soon(hold, shares, client, order, event)
            await anyio.wait_all_tasks_blocked()
        assert order == ["A", "A"]
        for event in events:
            event.set()
            await anyio.wait_all_tasks_blocked()
    assert order == ["A", "A", "A", "B", "C", "A"]
    assert (shares._free, shares._in_use, shares._waiting) == (2, {}, {})


async def test_one_client_leaves_a_share_to_others() -> None:
    shares, order, free = Shares(4, 3), list[str](), anyio.Event()
    async with anyio.create_task_group() as tasks:
        for client in "AAAAAB":
            tasks.start_soon(hold, shares, client, order, free)
            await anyio.wait_all_tasks_blocked()
        assert order == ["A", "A", "A", "B"]
        free.set()


async def test_a_large_share_is_not_passed_by_small_ones() -> None:
    shares, order, free, last = Shares(10, 8), list[str](), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        for client, amount, event in (("A", 5, free), ("B", 100, last), ("C", 1, last)):
            tasks.start_soon(hold, shares, client, order, event, amount)
            await anyio.wait_all_tasks_blocked()
        assert order == ["A"]
        free.set()
        await anyio.wait_all_tasks_blocked()
        assert sorted(order) == ["A", "B", "C"]  # the last two run in any order on trio
        last.set()


async def test_who_leaves_its_wait_takes_no_share() -> None:
    shares, order, free = Shares(1, 1), list[str](), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, shares, "A", order, free)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0):
            await hold(shares, "B", order, free)
        free.set()
        await hold(shares, "C", order, free)
    assert order == ["A", "C"]
    assert (shares._free, shares._in_use, shares._waiting) == (1, {}, {})


def picture(width: int = 20, height: int = 30) -> dict[str, Any]:
    """Return the body of a request with an image."""
    url = "data:image/png;base64," + base64.b64encode(png_of_bits(width, height)).decode()
    return {"messages": [{"role": "user", "content": [url_part(url)]}], "max_tokens": 1}


def test_the_images_of_a_request_have_a_bound_together() -> None:
    url = "data:image/png;base64," + base64.b64encode(png_of_bits(7_000, 7_000)).decode()
    assert len(chat(*[url_part(url)] * 8)[0]["content"]) == 8
    with pytest.raises(ApiError, match="400 million pixels together, got 441 million"):
        chat(*[url_part(url)] * 9)


def test_a_call_knows_of_its_images() -> None:
    assert read_chat(Fields(picture()), FORM).call.is_pictured
    assert read_chat(Fields({**picture(), "n": 2, "seed": 1}), FORM).call.is_pictured
    assert not read_chat(Fields({"messages": [{"role": "user", "content": "a"}]}), FORM).call.is_pictured


async def test_a_large_body_waits_for_room_and_then_is_told_to_come_later(serve: Serve) -> None:
    limits = Limits(body_bytes=2 * LARGE, bodies_bytes=2 * LARGE, body_seconds=0.05)
    service = Service(OneModel(serve("no"), None), limits, Gate())
    server = application(service, Access(), KeptResponses())
    small, large = ({"messages": [{"role": "user", "content": "a" * count}], "max_tokens": 1} for count in (9, LARGE))
    async with service.bodies.take("others", 2 * LARGE):
        assert (await ask(server, CHAT, small)).status == 200
        reply = await ask(server, CHAT, large)
        assert (reply.status, "try again later" in reply.error["message"]) == (503, True)
    assert (await ask(server, CHAT, large)).status == 400  # too long for the context
    assert (service.bodies._free, service.bodies._waiting) == (2 * LARGE, {})


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_client_that_leaves_takes_its_images_along(
    serve: Serve, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "takes_images", True)
    session = serve("no")
    service = Service(OneModel(session, None), Limits(), Gate())
    body = picture() | ({"tools": [TOOL]} if is_large else {})
    caller = Caller(application(service, Access(), KeptResponses()), CHAT, body)
    async with AsyncExitStack() as others, anyio.create_task_group() as tasks:
        for client in "AAAB":
            await others.enter_async_context(service.preparing.take(client))
        tasks.start_soon(run, caller)
        await until(lambda: bool(service.preparing._waiting), "the request waits for its turn")
        caller.disconnect.set()
        await until(lambda: not service.preparing._waiting, "the wait has ended")
    assert (caller.reply.status, dict(session.requests), service.preparing._in_use) == (0, {}, {})


async def test_a_text_model_decodes_no_image(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "decode", lambda *arguments: pytest.fail("decoded"))
    reply = await ask(app(serve("no")), CHAT, picture())
    assert (reply.status, "takes no images" in reply.error["message"]) == (400, True)


async def run(caller: Caller) -> None:
    """Run a request whose client may leave."""
    with suppress(ClientDisconnect):
        await caller.run()
