"""Whatever callers do, in any order, each is answered, and in the end every page and slot is free."""

from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.client.handle import Handle
from rekindle.core.errors import BatchFailed, QueueFull, RequestCancelled, SessionClosed
from rekindle.core.messages import Withdraw
from rekindle.core.request.params import SamplingOptions
from rekindle.session.session import Session
from rekindle.testing import (
    CheckedScheduler,
    FakeSettler,
    expected_tokens,
    fake_limits,
    fake_loaded_engine,
    fake_session,
)
from tests.unit.limits import WAYS
from tests.unit.sessions import reason
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Ask:
    """A caller with one of a session's ways to ask; it leaves a stream after `leave_after` pieces."""

    how: Literal["generate", "batch", "stream", "await", "result"]
    length: int
    max_tokens: int
    leave_after: int


@dataclass(frozen=True)
class Do:
    """An event of the session or of one of its earlier callers."""

    what: Literal["settle", "let run", "cancel", "interrupt", "release", "close"]
    whom: int


ASK = st.builds(
    Ask,
    how=st.sampled_from(["generate", "batch", "stream", "await", "result"]),
    length=st.integers(1, 40),
    max_tokens=st.sampled_from([40, 3, 1]),
    leave_after=st.sampled_from([100, 0, 2]),
)
DO = st.builds(Do, what=st.sampled_from(["settle", "let run", "cancel", "interrupt"]), whom=st.integers(0, 9))
BEFORE = st.lists(ASK | DO, min_size=6, max_size=30)
AFTER = st.lists(ASK | DO, max_size=4)
STORY = BEFORE | st.builds(
    lambda before, end, after: [*before, Do(end, 0), *after], BEFORE, st.sampled_from(["release", "close"]), AFTER
)


@dataclass
class Caller:
    """The task of one caller, and its only answer."""

    ask: Ask
    answers: list[object] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    handle: Handle | None = None

    async def run(self, session: Session) -> None:
        with self.scope:
            try:
                self.answers.append(await self._call(session))
            except (RequestCancelled, SessionClosed, QueueFull, BatchFailed) as error:
                self.answers.append(reason(error))
        if self.scope.cancelled_caught:
            self.answers.append("interrupted")

    async def _call(self, session: Session) -> tuple[int, ...]:
        options: SamplingOptions = {"max_tokens": self.ask.max_tokens}
        prompt = [self.ask.length] * self.ask.length
        match self.ask.how:
            case "generate":
                return (await session.generate(token_ids=prompt, **options)).token_ids
            case "batch":
                first, *others = await session.generate(token_ids=[prompt] * 3, **options)
                assert all(one.token_ids == first.token_ids for one in others)
                return first.token_ids
            case "stream":
                return await self._streamed(session, prompt, options)
        self.handle = session.submit(token_ids=prompt, **options)
        if self.ask.how == "await":
            return (await self.handle).token_ids
        return (await to_thread.run_sync(self.handle.result)).token_ids

    async def _streamed(self, session: Session, prompt: list[int], options: SamplingOptions) -> tuple[int, ...]:
        tokens: list[int] = []
        async for piece in session.stream(token_ids=prompt, **options):
            tokens += piece.token_ids
            if len(tokens) > self.ask.leave_after:
                break
        return tuple(tokens)

    def check(self, closed: bool) -> None:
        (answer,) = self.answers
        if isinstance(answer, tuple):
            expected = expected_tokens([self.ask.length] * self.ask.length, self.ask.max_tokens)
            if self.ask.how == "stream":
                expected = expected[: self.ask.leave_after + 1]
            assert answer == expected
        assert closed or not isinstance(answer, SessionClosed)
        assert self.handle or not isinstance(answer, RequestCancelled), "nobody else may cancel a request"


async def run_story(story: list[Ask | Do], limits: dict[str, Any]) -> None:
    settler, freed = FakeSettler(held=True), []
    loaded_engine = fake_loaded_engine(fake_limits(**limits), settler=settler, free=lambda: freed.append(True))
    session = fake_session(loaded_engine, max_waiting=4)
    client: list[Caller] = []
    async with anyio.create_task_group() as tasks:
        for event in story:
            if isinstance(event, Ask):
                client.append(Caller(event))
                tasks.start_soon(client[-1].run, session)
            else:
                await happen(event, session, settler, client)
            await checkpoint()
        settler.release()
    closed = session._engine.thread.error is not None
    for caller in client:
        caller.check(closed)
    if not closed:
        await let_the_engine_catch_up(session)
    scheduler = loaded_engine.lanes[0].actors.scheduler
    await session.close()
    assert freed == [True]
    assert isinstance(scheduler, CheckedScheduler)
    if closed:  # the scheduler was stopped in the middle, but its pages add up, and come free
        for request_id in [state.request.id for state in scheduler.table]:
            scheduler.handle(Withdraw(request_id))
    scheduler.check()
    stats = scheduler.stats
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
    assert not session._engine.client._handles, "nobody is kept who was answered"


async def happen(event: Do, session: Session, settler: FakeSettler, client: list[Caller]) -> None:
    caller = client[event.whom % len(client)] if client else None
    match event.what:
        case "settle":
            settler.step()
        case "let run":
            await anyio.wait_all_tasks_blocked()
        case "release":
            settler.release()
        case "close":
            await session.close()
        case "cancel" if caller and caller.handle:
            caller.handle.cancel()
        case "interrupt" if caller and caller.ask.how != "result":  # a thread cannot be interrupted from outside
            caller.scope.cancel()


async def let_the_engine_catch_up(session: Session) -> None:
    """Ask until the engine is done with interrupted requests, because their callers hear of no end."""
    while session.stats.scheduler.running or session.stats.scheduler.waiting:
        await session.generate(token_ids=[1], max_tokens=1)
    await session.generate(token_ids=[1], max_tokens=1)


LIMITS = st.fixed_dictionaries(WAYS | {"num_pages": st.sampled_from([7, 30]), "max_running": st.sampled_from([3, 1])})


def check(backend: str, story: list[Ask | Do], limits: dict[str, Any]) -> None:
    async def guarded() -> None:
        with anyio.fail_after(PATIENCE):
            await run_story(story, limits)

    anyio.run(guarded, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.wide)])
@settings(max_examples=25)
@given(story=STORY, limits=LIMITS)
def test_any_interleaving_leaves_all_free_and_everybody_answered(
    backend: str, story: list[Ask | Do], limits: dict[str, Any]
) -> None:
    check(backend, story, limits)


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=3000, derandomize=False)
@given(story=STORY, limits=LIMITS)
def test_any_of_very_many_interleavings_leaves_all_free_and_everybody_answered(
    backend: str, story: list[Ask | Do], limits: dict[str, Any]
) -> None:
    check(backend, story, limits)
