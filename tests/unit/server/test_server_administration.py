"""Administrators pause the server and replace weights and adapters; nobody else may, and the routes say so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import rekindle
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.lora import LowRank
from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import Caller, Reply, ask
from tests.unit.lora import random_parts, saved
from tests.waiting import until

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"
KEY = {"authorization": "Bearer admin"}
POSTS: dict[str, Any] = {
    "/pause": {},
    "/resume": {},
    "/sleep": {},
    "/wake_up": {},
    "/update_weights": {"model_path": "elsewhere"},
    "/update_weights_from_disk": {"model_path": "elsewhere"},
    "/v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "elsewhere"},
    "/v1/unload_lora_adapter": {"lora_name": "sql"},
}


@pytest.fixture
def settler() -> FakeSettler:
    return FakeSettler(held=True)


@pytest.fixture
def slow(byte_tokenizer: Tokenizer, settler: FakeSettler) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer, settler=settler)) as session:
        yield session


@pytest.fixture
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_adapters=2), tokenizer=byte_tokenizer)) as session:
        yield session


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    parts: dict[str, LowRank] = random_parts(fake_loaded_engine(fake_limits()).model, 1)
    return str(saved(tmp_path / "sql", parts))


async def manage(server: Any, path: str, body: Any = None, method: str = "POST") -> Reply:
    return await ask(server, path, body, method=method, headers=KEY)


async def test_without_a_key_of_its_own_no_administration_is_served(session: Session) -> None:
    for server, headers, status in (
        (app(session), {}, 403),
        (app(session, api_keys=["client"]), {"authorization": "Bearer client"}, 403),
        (app(session, api_keys=["client"], admin_keys=["admin"]), {"authorization": "Bearer client"}, 401),
        (app(session, admin_keys=["admin"]), {}, 401),
        (app(session, admin_keys=["admin"]), {"authorization": "Bearer admi"}, 401),
    ):
        for path, body in POSTS.items():
            refused = await ask(server, path, body, headers=headers)
            assert (refused.status, "--admin-key" in refused.error["message"]) == (status, True)
        for path in ("/is_paused", "/is_sleeping"):
            assert (await ask(server, path, headers=headers)).status == status
    assert (session.adapters, session.weights_version, session.asleep) == ({}, 0, False)
    with pytest.raises(rekindle.ConfigError, match="admin_keys must be a list of non-empty strings"):
        app(session, admin_keys=[""])


async def test_an_administrator_is_a_client_too(session: Session) -> None:
    server = app(session, api_keys=["client"], admin_keys=["admin"])
    assert (await ask(server, "/v1/models", headers=KEY)).status == 200
    assert (await ask(server, "/v1/models")).status == 401
    assert (await ask(app(session, admin_keys=["admin"]), "/v1/models")).status == 200


async def test_a_paused_server_lets_requests_wait_until_it_resumes(session: Session) -> None:
    server = app(session, admin_keys=["admin"])
    replies: dict[str, Reply] = {}
    bodies: dict[str, Any] = {TEXT: {"prompt": "a", "max_tokens": 1}, "/v1/embeddings": {"input": "a"}}

    async def serve(path: str) -> None:
        replies[path] = await ask(server, path, bodies[path])

    assert (await manage(server, "/pause")).json == {"status": "paused"}
    assert (await manage(server, "/is_paused", method="GET")).json == {"is_paused": True}
    client, departure = Caller(server, TEXT, bodies[TEXT]), anyio.Event()

    async def leave() -> None:
        await client.run()
        departure.set()

    async with anyio.create_task_group() as tasks:
        for path in bodies:
            tasks.start_soon(serve, path)
        tasks.start_soon(leave)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert (await ask(server, "/tokenize", {"prompt": "a"})).status == 200
        client.disconnect.set()
        await departure.wait()
        assert not replies
        assert not session.requests
        assert (await manage(server, "/resume")).json == {"status": "resumed"}
    assert [reply.status for reply in replies.values()] == [200, 200]
    assert client.reply.status == 0
    assert (await manage(server, "/is_paused", method="GET")).json == {"is_paused": False}


@pytest.mark.parametrize(("mode", "status"), [("abort", 503), ("wait", 200)])
async def test_a_pause_cancels_what_is_under_way_or_waits_for_its_end(
    slow: Session, settler: FakeSettler, mode: str, status: int
) -> None:
    server = app(slow, admin_keys=["admin"])
    running = Caller(server, TEXT, {"prompt": "a", "max_tokens": 3})
    pausing = Caller(server, f"/pause?mode={mode}", {}, headers=KEY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run)
        await until(lambda: len(slow.requests) == 1, "a request")
        (handle,) = slow.requests.values()
        tasks.start_soon(pausing.run)
        while not (await manage(server, "/is_paused", method="GET")).json["is_paused"]:
            await anyio.lowlevel.checkpoint()
        assert handle.record.cancelling == (mode == "abort")
        assert pausing.reply.status == 0 or mode == "abort"  # a cancelled request may end while its step runs
        settler.release()
    assert (running.reply.status, pausing.reply.status) == (status, 200)
    assert not slow.requests


async def test_a_mode_that_is_not_served_is_named(session: Session) -> None:
    server = app(session, admin_keys=["admin"])
    refused = await manage(server, "/pause?mode=keep", {})
    assert (refused.status, refused.error["param"]) == (400, "mode")
    assert "mode must be abort or wait, got 'keep'" in refused.error["message"]


async def test_weights_come_from_a_path_and_sleep_frees_them(session: Session) -> None:
    server = app(session, admin_keys=["admin"])
    done = (await manage(server, "/update_weights", {"model_path": "step-2", "in_flight": "fail"})).json
    assert done == {"success": True, "message": "the weights are those of step-2", "weights_version": 1}
    assert session.weights_version == 1
    refused = await manage(server, "/update_weights", {"model_path": "step-2", "in_flight": "later"})
    assert (refused.status, "in_flight must be" in refused.error["message"]) == (400, True)
    assert (await manage(server, "/update_weights", {})).error["param"] == "model_path"
    await manage(server, "/sleep")
    assert (await manage(server, "/is_sleeping", method="GET")).json == {"is_sleeping": True}
    await manage(server, "/wake_up")
    assert not session.asleep


async def test_a_model_has_several_names_and_answers_have_the_first(session: Session, adapter: str) -> None:
    server = app(session, name=["base", "gpt", "base", "claude"], admin_keys=["admin"])
    assert (await ask(server, TEXT, {"model": "claude", "prompt": "a", "max_tokens": 1})).json["model"] == "base"
    cards = (await ask(server, "/v1/models")).json["data"]
    assert [(card["id"], card["root"], "parent" in card) for card in cards] == [
        ("base", "base", False),
        ("gpt", "base", False),
        ("claude", "base", False),
    ]
    refused = await manage(server, "/v1/load_lora_adapter", {"lora_name": "gpt", "lora_path": adapter})
    assert "'gpt' is the model's name" in refused.error["message"]
    assert (await manage(server, "/sleep?model=claude")).status == 200
    assert session.asleep
    text = (await ask(server, "/metrics")).body.decode()
    assert "model=" not in text


async def test_adapters_come_and_go_by_their_paths(session: Session, adapter: str, tmp_path: Path) -> None:
    server = app(session, name="base", admin_keys=["admin"])
    loaded = {"lora_name": "sql", "lora_path": adapter}
    assert (await manage(server, "/v1/load_lora_adapter", loaded)).body == b"Success: the adapter 'sql' is loaded."
    names = [card["id"] for card in (await ask(server, "/v1/models")).json["data"]]
    assert names == ["base", "sql"]
    assert (await ask(server, TEXT, {"model": "sql", "prompt": "a", "max_tokens": 1})).json["model"] == "sql"
    again = await manage(server, "/v1/load_lora_adapter", loaded)
    assert (again.status, "sql" in again.error["message"]) == (400, True)
    assert (await manage(server, "/v1/load_lora_adapter", {**loaded, "load_inplace": True})).status == 200
    absent = await manage(
        server, "/v1/load_lora_adapter", {**loaded, "lora_name": "x", "lora_path": str(tmp_path / "no")}
    )
    assert absent.status == 404
    assert (await manage(server, "/v1/load_lora_adapter", {**loaded, "lora_name": "base"})).status == 400
    assert (await manage(server, "/v1/unload_lora_adapter", {"lora_name": "base"})).status == 400
    assert (await manage(server, "/v1/unload_lora_adapter", {"lora_name": "sql"})).status == 200
    assert not session.adapters
    assert (await manage(server, "/v1/unload_lora_adapter", {"lora_name": "sql"})).status == 404
