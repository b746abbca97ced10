"""A server of several models opens each for its first request, and closes models idle or in the way."""

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import cast

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from starlette.types import ASGIApp

from rekindle.core.errors import CheckpointError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server.application import application
from rekindle.server.common.errors import ApiError
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.limits import Limits
from rekindle.server.models.gate import Gate
from rekindle.server.models.pool import ModelPool
from rekindle.server.openai.responses.kept import KeptResponses
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import Caller, ask
from tests.unit.lora import random_parts, saved
from tests.waiting import until

pytestmark = pytest.mark.anyio


class FakeSource:
    """A model over the fake device."""

    def __init__(self, share: float, adapters: Sequence[str] = (), failures: int = 0, aliases: Sequence[str] = ()):
        self.adapters, self.sessions, self._share, self._failures = adapters, list[Session](), share, failures
        self.aliases = aliases
        self.on_open: Callable[[], object] = lambda: None

    def share(self) -> float:
        return self._share

    async def open(self) -> Session:
        self.on_open()
        await checkpoint()
        if self._failures:
            self._failures -= 1
            raise CheckpointError("the file is damaged")
        self.sessions.append(fake_session())
        return self.sessions[-1]

    @property
    def is_open(self) -> bool:
        return bool(self.sessions) and not self.sessions[-1]._engine.thread.stopped.closed


KEY = {"authorization": "Bearer key"}


def served_by(pool: ModelPool) -> ASGIApp:
    return application(Service(pool, Limits(), Gate()), Access(admin_keys=["key"]), KeptResponses())


@asynccontextmanager
async def pool_of(keep_alive: float = inf, **sources: FakeSource) -> AsyncIterator[ModelPool]:
    pool = ModelPool(sources, keep_alive, room=1.0)
    async with pool.running():
        yield pool
    assert not any(source.is_open for source in sources.values())


async def test_a_model_opens_once_for_its_first_requests_and_stays_for_the_next() -> None:
    one = FakeSource(0.5)
    async with pool_of(one=one) as pool:
        assert pool.open_models() == []

        async def request() -> None:
            async with pool.use("one") as model:
                assert model.session is one.sessions[0]

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(request)
        await request()
        assert len(one.sessions) == 1


async def test_models_that_fit_stay_open_and_the_one_idle_longest_leaves_for_one_that_does_not() -> None:
    a, b, c = FakeSource(0.4), FakeSource(0.4), FakeSource(0.3)
    async with pool_of(a=a, b=b, c=c) as pool:
        for name in ("a", "b", "a"):
            async with pool.use(name):
                pass
        assert (a.is_open, b.is_open) == (True, True)
        async with pool.use("c"):
            assert (a.is_open, b.is_open, c.is_open) == (True, False, True)


async def test_a_model_larger_than_the_room_opens_alone() -> None:
    small, large = FakeSource(0.1), FakeSource(1.5)
    async with pool_of(small=small, large=large) as pool:
        async with pool.use("small"):
            pass
        async with pool.use("large"):
            assert not small.is_open


async def test_a_busy_model_leaves_after_its_requests_and_later_ones_wait_for_their_turn() -> None:
    a, b, order = FakeSource(0.6), FakeSource(0.6), list[str]()

    async def request(pool: ModelPool, name: str) -> None:
        async with pool.use(name):
            order.append(name)

    async with pool_of(a=a, b=b) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a"):
            tasks.start_soon(request, pool, "b")
            await until(lambda: pool._open["a"].leaving, "the model was to leave")
            tasks.start_soon(request, pool, "a")
            await wait_all_tasks_blocked()
            assert order == []
            assert a.is_open
        await until(lambda: len(order) == 2, "both requests were served")
        assert order == ["b", "a"]
        assert len(a.sessions) == 2


async def test_a_model_with_room_opens_while_another_waits_for_a_busy_one() -> None:
    a, b, c, order = FakeSource(0.6), FakeSource(0.6), FakeSource(0.2), list[str]()

    async def request(pool: ModelPool, name: str) -> None:
        async with pool.use(name):
            order.append(name)

    async with pool_of(a=a, b=b, c=c) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a"):
            for _ in range(2):
                tasks.start_soon(request, pool, "b")
            await until(lambda: pool._open["a"].leaving == 2, "both waited for the model")
            tasks.start_soon(request, pool, "a")
            await wait_all_tasks_blocked()
            async with pool.use("c"):
                assert (a.is_open, b.is_open, c.is_open) == (True, False, True)
            async with pool.use("c"):
                assert len(c.sessions) == 1
            assert order == []
        await until(lambda: len(order) == 3, "all requests were served")
    assert (order[0], sorted(order)) == ("b", ["a", "b", "b"])


async def test_waits_for_two_busy_models_let_one_of_them_stay() -> None:
    """Wait for one busy model, not for the model of the oldest request at each moment: no model would ever close."""
    a, b, c, d = FakeSource(0.4), FakeSource(0.4), FakeSource(0.4), FakeSource(0.4)
    done = list[str]()

    async def request(pool: ModelPool, name: str) -> None:
        async with pool.use(name):
            done.append(name)

    async with pool_of(a=a, b=b, c=c, d=d) as pool, anyio.create_task_group() as tasks, pool.use("b"):
        async with pool.use("a"), pool.use("a"):
            tasks.start_soon(request, pool, "c")
            first, second = pool._open["b"], pool._open["a"]
            await until(lambda: first.leaving == 1, "a model was to leave")
            first.idle_since = second.idle_since + 1  # as if a request of the first one had ended
            tasks.start_soon(request, pool, "d")
            await until(lambda: first.leaving == 2, "the same was to leave")
            assert second.leaving == 0
        await until(lambda: sorted(done) == ["c", "d"], "the idle one left for them")
        assert (b.is_open, a.is_open, first.leaving) == (True, False, 0)


async def test_an_opening_that_was_given_up_leaves_the_others_as_they_are() -> None:
    a, b = FakeSource(0.6), FakeSource(0.6)
    async with pool_of(a=a, b=b) as pool, pool.use("a"):
        with anyio.move_on_after(0.01):
            async with pool.use("b"):
                pytest.fail("there is no room")
        async with pool.use("a") as model:
            assert model.session is a.sessions[0]


async def test_a_client_that_leaves_waits_for_no_model() -> None:
    a, b = FakeSource(0.6), FakeSource(0.6)
    async with pool_of(a=a, b=b) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a"):
            caller = Caller(served_by(pool), "/v1/completions", {"model": "b", "prompt": [3], "max_tokens": 2})
            tasks.start_soon(caller.run)
            await until(lambda: pool._open["a"].leaving, "the model was to leave")
            caller.disconnect.set()
            await until(lambda: not pool._open["a"].leaving, "the client had left")
        await wait_all_tasks_blocked()
        assert (a.is_open, b.sessions, caller.reply.status) == (True, [], 0)


async def test_an_opening_goes_on_when_its_client_leaves() -> None:
    one, scopes = FakeSource(0.6), list[anyio.CancelScope]()
    async with pool_of(one=one) as pool:
        with anyio.CancelScope() as scope:

            def leave() -> None:
                scope.cancel()
                scopes.append(scope)

            one.on_open = leave
            async with pool.use("one"):
                await checkpoint()
        assert scope.cancelled_caught
        async with pool.use("one") as model:
            assert model.session is one.sessions[0]
        assert (scopes, pool._open["one"].users) == ([scope], 0)


@pytest.mark.parametrize("error", [CheckpointError("the disk is full"), OSError("the disk is full")])
async def test_a_model_that_fails_to_close_hinders_no_other(error: Exception) -> None:
    a, b = FakeSource(0.6), FakeSource(0.6)
    async with pool_of(a=a, b=b) as pool:
        async with pool.use("a"):
            pass
        (session,) = a.sessions

        class Failing:
            error, asleep, weights_version = None, False, 0

            async def close(self) -> None:
                await session.close()
                raise error

        entry = pool._open["a"]
        entry.model = replace(entry.model, session=cast(Session, Failing()))
        async with pool.use("b"):
            assert (a.is_open, b.is_open) == (False, True)


async def test_a_model_comes_before_an_adapter_of_its_name() -> None:
    async with pool_of(a=FakeSource(0.4, ["b"]), b=FakeSource(0.4)) as pool, pool.use("b") as model:
        assert (model.base, model.adapter) == ("b", None)


async def test_an_adapter_cannot_take_the_name_of_another_model() -> None:
    pool = ModelPool({"a": FakeSource(0.4), "b": FakeSource(0.4, ["sql"], aliases=["c"])}, inf, 1.0)
    server = served_by(pool)
    async with pool.running():
        for name in ("b", "c", "sql"):
            body = {"lora_name": name, "lora_path": "adapter", "model": "a"}
            reply = await ask(server, "/v1/load_lora_adapter", body, headers=KEY)
            assert (reply.status, reply.error["param"]) == (400, "lora_name")
            assert f"{name!r} is a name of another model" in reply.error["message"]


async def test_sleep_reaches_the_open_models_or_the_named_one_and_opens_none() -> None:
    a, b, c = FakeSource(0.3), FakeSource(0.3), FakeSource(0.3)
    async with pool_of(a=a, b=b, c=c) as pool:
        server = served_by(pool)
        for name in ("a", "b"):
            async with pool.use(name):
                pass

        async def asleep(query: str = "") -> object:
            return (await ask(server, f"/is_sleeping{query}", headers=KEY)).json

        assert (await ask(server, "/sleep?model=b", {}, headers=KEY)).status == 200
        assert await asleep() == {"is_sleeping": False, "models": {"a": False, "b": True, "c": False}}
        assert await asleep("?model=b") == {"is_sleeping": True}
        assert (await ask(server, "/wake_up", {"model": "b"}, headers=KEY)).status == 200
        assert await asleep("?model=b") == {"is_sleeping": False}
        refused = await ask(server, "/sleep", {"level": 2}, headers=KEY)
        assert (refused.status, refused.error["param"]) == (400, "level")
        assert (await ask(server, "/sleep", b"", method="POST", headers=KEY)).status == 200
        assert (await ask(server, "/sleep?model=c", {}, headers=KEY)).status == 200
        assert await asleep() == {"is_sleeping": False, "models": {"a": True, "b": True, "c": False}}
        assert (await ask(server, "/wake_up", {}, headers=KEY)).status == 200
        assert [source.sessions[0].asleep for source in (a, b)] == [False, False]
        assert not c.sessions
        unknown = await ask(server, "/sleep?model=d", {}, headers=KEY)
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


async def test_a_sleeping_model_stays_until_it_wakes_and_then_closes_when_idle() -> None:
    a = FakeSource(0.3)
    async with pool_of(keep_alive=0.0, a=a) as pool:
        server = served_by(pool)
        async with pool.use("a"):
            await ask(server, "/sleep", {}, headers=KEY)
        await wait_all_tasks_blocked()
        assert a.is_open
        await ask(server, "/wake_up", {}, headers=KEY)
        await until(lambda: not a.is_open, "the model had closed")


async def test_a_pause_of_one_model_leaves_the_others() -> None:
    async with pool_of(a=FakeSource(0.3), b=FakeSource(0.3)) as pool, anyio.create_task_group() as tasks:
        server, body = served_by(pool), {"prompt": [3], "max_tokens": 1}
        await ask(server, "/pause?model=b", {}, headers=KEY)
        paused = {"is_paused": False, "models": {"a": False, "b": True}}
        assert (await ask(server, "/is_paused", headers=KEY)).json == paused
        waiting = Caller(server, "/v1/completions", {**body, "model": "b"})
        tasks.start_soon(waiting.run)
        assert (await ask(server, "/v1/completions", {**body, "model": "a"})).status == 200
        await wait_all_tasks_blocked()
        assert waiting.reply.status == 0
        await ask(server, "/resume", {}, headers=KEY)
    assert waiting.reply.status == 200


async def test_administration_of_one_of_several_models_needs_its_name() -> None:
    a, b = FakeSource(0.3), FakeSource(0.3)
    async with pool_of(a=a, b=b) as pool:
        server, body = served_by(pool), {"model_path": "step-2"}
        refused = await ask(server, "/update_weights", body, headers=KEY)
        assert (refused.status, refused.error["param"], "name one of 'a', 'b'" in refused.error["message"]) == (
            400,
            "model",
            True,
        )
        for arguments in (("/update_weights?model=b", body), ("/update_weights", {**body, "model": "b"})):
            assert (await ask(server, *arguments, headers=KEY)).status == 200
        assert (a.sessions, b.sessions[0].weights_version) == ([], 2)
        assert (await ask(server, "/tokenizer_info")).error["param"] == "model"
        assert "has no tokenizer" in (await ask(server, "/tokenizer_info?model=b")).error["message"]


async def test_adapters_of_administrators_come_back_with_their_model_and_removed_ones_stay_away(
    tmp_path: Path, byte_tokenizer: Tokenizer
) -> None:
    loaded = fake_loaded_engine(fake_limits(max_adapters=2), tokenizer=byte_tokenizer)
    old, path = (str(saved(tmp_path / name, random_parts(loaded.model, 1))) for name in ("old", "sql"))

    class Source(FakeSource):
        async def open(self) -> Session:
            engine = fake_loaded_engine(fake_limits(max_adapters=2), tokenizer=byte_tokenizer)
            self.sessions.append(fake_session(engine))
            await self.sessions[-1].add_adapter("old", old)
            return self.sessions[-1]

    a, b = Source(0.6, ["old"]), FakeSource(0.6)
    async with pool_of(a=a, b=b) as pool:
        server, body = served_by(pool), {"lora_name": "sql", "lora_path": path, "model": "a"}
        assert (await ask(server, "/v1/load_lora_adapter", body, headers=KEY)).status == 200
        assert (await ask(server, "/v1/unload_lora_adapter", {"lora_name": "old"}, headers=KEY)).status == 200

        async def names() -> list[str]:
            return [card["id"] for card in (await ask(server, "/v1/models")).json["data"]]

        assert await names() == ["a", "sql", "b"]
        async with pool.use("b"):
            assert not a.is_open
        assert await names() == ["a", "sql", "b"]
        async with pool.use("sql") as model:
            assert (list(model.session.adapters), model.adapter, len(a.sessions)) == (["sql"], "sql", 2)
        async with pool.use("b"):
            assert not a.is_open
        assert (await ask(server, "/v1/unload_lora_adapter", {"lora_name": "sql"}, headers=KEY)).status == 200
        assert await names() == ["a", "b"], "a closed model does not open for this"
        assert len(a.sessions) == 2
        assert (await ask(server, "/v1/load_lora_adapter", body, headers=KEY)).status == 200
        shutil.rmtree(path)
        async with pool.use("b"):
            pass
        async with pool.use("a") as model:
            assert not model.session.adapters
        assert await names() == ["a", "b"]


async def test_an_adapter_removed_while_its_model_opens_stays_away_and_leaves_no_trace() -> None:
    one = FakeSource(0.5)
    pool = ModelPool({"one": one}, inf, 1.0)
    names = dict[str, str]()

    class Opening:
        error, asleep, weights_version, adapters, closed = None, False, 0, names, False

        async def add_adapter(self, name: str, path: str) -> None:
            await checkpoint()
            if name == "broken":
                raise OSError("the disk is away")
            pool.note_adapter("one", name, None)  # an administrator was faster
            names[name] = path

        async def remove_adapter(self, name: str) -> None:
            del names[name]

        async def close(self) -> None:
            self.closed = True

    sessions = [Opening(), Opening()]

    async def opening() -> Session:
        return cast(Session, sessions[len(one.sessions)])

    one.open = opening  # type: ignore[method-assign]
    pool.note_adapter("one", "sql", "sql")
    async with pool.running():
        async with pool.use("one"):
            assert (names, pool._adapters) == ({}, {"one": {}})
        await pool._close("one")
        one.sessions.append(cast(Session, sessions[0]))
        pool.note_adapter("one", "broken", "broken")
        with pytest.raises(OSError, match="away"):
            async with pool.use("one"):
                pytest.fail("it is not open")
        assert (sessions[1].closed, pool.open_models()) == (True, [])


async def test_a_model_with_new_weights_stays_when_idle_and_leaves_last(caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = FakeSource(0.4), FakeSource(0.4), FakeSource(0.4)
    async with pool_of(keep_alive=0.0, a=a, b=b) as pool:
        for name in ("a", "b"):
            async with pool.use(name) as model:
                if name == "a":
                    await model.session.update_weights("step-2")
        await until(lambda: not b.is_open, "the idle one had closed")
        assert a.is_open
    async with pool_of(a=a, b=b, c=c) as pool:
        for name in ("a", "b", "c"):
            async with pool.use(name) as model:
                if name == "a":
                    await model.session.update_weights("step-2")
        assert (a.is_open, b.is_open, c.is_open) == (True, False, True), "the others leave first"
        assert not caplog.records
        b._share = 0.8
        async with pool.use("b"):
            assert not a.is_open
        assert "a closes for another model, and its new weights are lost" in caplog.text


async def test_a_failed_model_leaves_first_even_with_new_weights() -> None:
    a, b, c = FakeSource(0.4), FakeSource(0.4), FakeSource(0.4)
    async with pool_of(a=a, b=b, c=c) as pool:
        async with pool.use("b"):
            pass
        async with pool.use("a") as model:
            await model.session.update_weights("step-2")
        (session,) = a.sessions

        class Failed:
            error, asleep, weights_version, adapters = CheckpointError("the engine failed"), True, 1, ()
            close = session.close

        entry = pool._open["a"]
        entry.model = replace(entry.model, session=cast(Session, Failed()))
        async with pool.use("c"):
            assert (a.is_open, b.is_open) == (False, True)


async def test_ollamas_clients_decide_how_long_a_model_stays() -> None:
    a, b = FakeSource(0.3), FakeSource(0.3)
    async with pool_of(a=a, b=b) as pool:
        server, prompt = served_by(pool), {"prompt": "", "model": "a"}
        loaded = (await ask(server, "/api/generate", {**prompt, "keep_alive": "1h"})).json
        assert (loaded["done_reason"], a.is_open) == ("load", True)
        assert 3500 < pool.closes_in("a") <= 3600
        await ask(server, "/api/generate", {**prompt, "keep_alive": -1})
        assert pool.closes_in("a") == inf
        (running,) = (await ask(server, "/api/ps")).json["models"]
        assert running["expires_at"].startswith("9999")
        for path, empty in (("/api/generate", prompt), ("/api/chat", {"model": "a:latest", "messages": []})):
            unloaded = (await ask(server, path, {**empty, "keep_alive": 0})).json
            assert unloaded["done_reason"] == "unload"
            await until(lambda: not a.is_open, "the model had closed")
        assert len(a.sessions) == 1, "a closed model does not open to close"
        assert (await ask(server, "/api/ps")).json["models"] == []
        sizes = [tag["details"]["parameter_size"] for tag in (await ask(server, "/api/tags")).json["models"]]
        assert [bool(size) for size in sizes] == [True, False], "what was seen of a closed model stays"
        await ask(server, "/api/embed", {"model": "b", "input": [], "keep_alive": 0})
        await until(lambda: len(b.sessions) == 1 and not b.is_open, "the model had closed after its answer")
        missing = await ask(server, "/api/generate", {"model": "c", "keep_alive": 0})
        assert missing.status == 404


async def test_an_alias_is_a_name_of_its_model_whose_answers_have_the_first_name() -> None:
    a, b = FakeSource(0.3, ["sql"], aliases=["gpt", "claude"]), FakeSource(0.3)
    async with pool_of(a=a, b=b) as pool:
        server = served_by(pool)
        answer = await ask(server, "/v1/completions", {"model": "gpt", "prompt": [3], "max_tokens": 1})
        assert (answer.json["model"], len(a.sessions)) == ("a", 1)
        cards = (await ask(server, "/v1/models")).json["data"]
        names = [(card["id"], card["root"], card.get("parent")) for card in cards]
        assert names == [("a", "a", None), ("gpt", "a", None), ("claude", "a", None), ("b", "b", None)]
        assert pool.bases == ["a", "b"]


async def test_an_idle_model_closes_after_its_time_and_a_busy_one_does_not() -> None:
    one = FakeSource(0.5)
    async with pool_of(keep_alive=0.0, one=one) as pool:
        async with pool.use("one"):
            await wait_all_tasks_blocked()
            assert one.is_open
        await until(lambda: not one.is_open, "the model had closed")
        async with pool.use("one"):
            assert len(one.sessions) == 2


async def test_a_model_whose_engine_failed_opens_anew() -> None:
    one = FakeSource(0.5)
    async with pool_of(one=one) as pool:
        async with pool.use("one"):
            pass
        await one.sessions[0].close()
        assert pool.open_models() == [], "a server with a model that opens anew is well"
        async with pool.use("one") as model:
            assert model.session is one.sessions[1]


async def test_an_error_of_an_opening_is_an_answer_and_the_next_request_tries_again() -> None:
    one = FakeSource(0.5, failures=1)
    async with pool_of(one=one) as pool:
        with pytest.raises(ApiError, match="the model 'one' cannot be opened; the log of the server") as raised:
            async with pool.use("one"):
                pass
        assert raised.value.status == 503
        async with pool.use("one"):
            assert one.is_open


async def test_names_are_those_of_models_and_their_adapters_before_any_is_open() -> None:
    server = served_by(ModelPool({"a": FakeSource(0.4, ["sql"]), "b": FakeSource(0.4)}, inf, 1.0))
    reply = await ask(server, "/v1/models")
    assert [(card["id"], card.get("parent"), card["max_model_len"]) for card in reply.json["data"]] == [
        ("a", None, None),
        ("sql", "a", None),
        ("b", None, None),
    ]
    assert (await ask(server, "/v1/models/b")).json["id"] == "b"
    missing = await ask(server, "/v1/completions", {"model": "c", "prompt": [1]})
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert "'a', 'sql', 'b'" in missing.error["message"]


async def test_requests_are_answered_and_counted_by_model() -> None:
    pool = ModelPool({"a": FakeSource(0.4), "b": FakeSource(0.4)}, inf, 1.0)
    server = served_by(pool)
    async with pool.running():
        for name in ("a", "b", "b"):
            answer = await ask(server, "/v1/completions", {"model": name, "prompt": [3, 1], "max_tokens": 2})
            assert (answer.status, answer.json["model"], answer.json["usage"]["completion_tokens"]) == (200, name, 2)
        text = (await ask(server, "/metrics")).body.decode()
        samples = [line for line in text.splitlines() if line.startswith("rekindle_requests_total")]
        assert samples == [
            'rekindle_requests_total{finish_reason="length",model="a"} 1.0',
            'rekindle_requests_total{finish_reason="length",model="b"} 2.0',
        ]
        assert text.count("# TYPE rekindle_requests_total counter") == 1
        assert (await ask(server, "/health")).status == 200
