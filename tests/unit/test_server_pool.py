"""A server of several models opens each for its first request, and closes those that are idle or in the way."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import cast

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from starlette.types import ASGIApp

from rekindle.core.errors import CheckpointError
from rekindle.server.access import Access
from rekindle.server.application import application
from rekindle.server.errors import ApiError
from rekindle.server.exchange import Service
from rekindle.server.gate import Gate
from rekindle.server.limits import Limits
from rekindle.server.models.pool import ModelPool
from rekindle.server.responses import KeptResponses
from rekindle.session.session import Session
from rekindle.testing import fake_session
from tests.unit.asgi import Caller, ask
from tests.waiting import until

pytestmark = pytest.mark.anyio


class FakeSource:
    """A model over the fake device."""

    def __init__(self, share: float, adapters: Sequence[str] = (), failures: int = 0):
        self.adapters, self.sessions, self._share, self._failures = adapters, list[Session](), share, failures
        self.begun: Callable[[], object] = lambda: None

    def share(self) -> float:
        return self._share

    async def open(self) -> Session:
        self.begun()
        await checkpoint()
        if self._failures:
            self._failures -= 1
            raise CheckpointError("the file is damaged")
        self.sessions.append(fake_session())
        return self.sessions[-1]

    @property
    def is_open(self) -> bool:
        return bool(self.sessions) and not self.sessions[-1]._engine.stopped.closed


def served_by(pool: ModelPool) -> ASGIApp:
    return application(Service(pool, Limits(), Gate(), KeptResponses()), Access())


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
            caller.gone.set()
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

            one.begun = leave
            async with pool.use("one"):
                await checkpoint()
        assert scope.cancelled_caught
        async with pool.use("one") as model:
            assert model.session is one.sessions[0]
        assert (scopes, pool._open["one"].users) == ([scope], 0)


async def test_a_model_that_fails_to_close_hinders_no_other() -> None:
    a, b = FakeSource(0.6), FakeSource(0.6)
    async with pool_of(a=a, b=b) as pool:
        async with pool.use("a"):
            pass
        (session,) = a.sessions

        class Failing:
            error = None

            async def close(self) -> None:
                await session.close()
                raise CheckpointError("the disk is full")

        entry = pool._open["a"]
        entry.model = replace(entry.model, session=cast(Session, Failing()))
        async with pool.use("b"):
            assert (a.is_open, b.is_open) == (False, True)


async def test_a_model_comes_before_an_adapter_of_its_name() -> None:
    async with pool_of(a=FakeSource(0.4, ["b"]), b=FakeSource(0.4)) as pool, pool.use("b") as model:
        assert (model.base, model.adapter) == ("b", None)


async def test_an_adapter_cannot_take_the_name_of_another_model() -> None:
    pool = ModelPool({"a": FakeSource(0.4), "b": FakeSource(0.4, ["sql"])}, inf, 1.0)
    service = Service(pool, Limits(), Gate(), KeptResponses())
    async with pool.running():
        for name in ("b", "sql"):
            body = {"lora_name": name, "lora_path": "adapter"}
            served = application(service, Access(admin_keys=["key"]))
            reply = await ask(served, "/v1/load_lora_adapter", body, headers={"authorization": "Bearer key"})
            assert (reply.status, reply.error["param"]) == (400, "lora_name")
            assert f"{name!r} is a name of another model" in reply.error["message"]


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
        with pytest.raises(ApiError, match="the model 'one' cannot be opened: the file is damaged") as raised:
            async with pool.use("one"):
                pass
        assert raised.value.status == 503
        async with pool.use("one"):
            assert one.is_open


async def test_names_are_those_of_models_and_their_adapters_before_any_is_open() -> None:
    served = served_by(ModelPool({"a": FakeSource(0.4, ["sql"]), "b": FakeSource(0.4)}, inf, 1.0))
    listed = await ask(served, "/v1/models")
    assert [(card["id"], card.get("parent"), card["max_model_len"]) for card in listed.json["data"]] == [
        ("a", None, None),
        ("sql", "a", None),
        ("b", None, None),
    ]
    assert (await ask(served, "/v1/models/b")).json["id"] == "b"
    missing = await ask(served, "/v1/completions", {"model": "c", "prompt": [1]})
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert "'a', 'sql', 'b'" in missing.error["message"]


async def test_requests_are_answered_and_counted_by_model() -> None:
    pool = ModelPool({"a": FakeSource(0.4), "b": FakeSource(0.4)}, inf, 1.0)
    served = served_by(pool)
    async with pool.running():
        for name in ("a", "b", "b"):
            answer = await ask(served, "/v1/completions", {"model": name, "prompt": [3, 1], "max_tokens": 2})
            assert (answer.status, answer.json["model"], answer.json["usage"]["completion_tokens"]) == (200, name, 2)
        text = (await ask(served, "/metrics")).body.decode()
        samples = [line for line in text.splitlines() if line.startswith("rekindle_requests_total")]
        assert samples == [
            'rekindle_requests_total{finish_reason="length",model="a"} 1',
            'rekindle_requests_total{finish_reason="length",model="b"} 2',
        ]
        assert text.count("# TYPE rekindle_requests_total counter") == 1
        assert (await ask(served, "/health")).status == 200
