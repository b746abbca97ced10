"""However and by whomever the engine is stepped, paused and resumed, requests get the same tokens."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.client.handle import Handle
from rekindle.core.errors import RequestCancelled
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_session
from tests.unit.limits import WAYS
from tests.unit.telling import run_to_the_end
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PROMPT = (3, 1, 4)


@dataclass(frozen=True)
class Ask:
    """A request."""

    length: int
    max_tokens: int
    seed: int | None


@dataclass(frozen=True)
class Do:
    """An act of a user; `number` is the request or the number of times."""

    what: Literal["step", "pause", "resume", "cancel", "in a thread"]
    number: int


ASK = st.builds(
    Ask,
    length=st.integers(1, 50),
    max_tokens=st.sampled_from([1, 2, 5, 20]),
    seed=st.sampled_from([None, None, 7]),
)
DO = st.builds(
    Do,
    what=st.sampled_from(["step", "step", "step", "pause", "resume", "cancel", "in a thread"]),
    number=st.integers(1, 25),
)
STORY = st.lists(ASK | DO, min_size=4, max_size=25)
LIMITS = st.fixed_dictionaries(WAYS | {"num_pages": st.sampled_from([6, 40]), "max_running": st.sampled_from([3, 1])})


async def play(story: list[Ask | Do], limits: dict[str, Any], ending: str) -> None:
    """Play a story, and compare the tokens of its requests with the tokens of each alone, or the first ones."""
    session = fake_session(**limits)
    requests: list[tuple[Ask, Handle]] = []
    cancelled: set[Handle] = set()
    records: list[MessageRecord] = []
    with session.watch(records.append):
        for event in story:
            if isinstance(event, Ask):
                options: dict[str, Any] = {} if event.seed is None else {"temperature": 1.0, "seed": event.seed}
                prompt = [event.length] * event.length
                requests.append((event, session.submit(token_ids=prompt, max_tokens=event.max_tokens, **options)))
            elif event.what == "cancel" and requests:
                _, handle = requests[event.number % len(requests)]
                handle.cancel()
                cancelled.add(handle)
            else:
                await happen(event, session)
        if ending == "stepped":
            await run_to_the_end(session)
            assert all(handle.done for _, handle in requests), "a session that is stepped comes to its end"
        session.resume()
        for ask, handle in requests:
            expected = expected_tokens([ask.length] * ask.length, ask.max_tokens, draw=ask.seed or 0)
            if handle in cancelled:
                with anyio.CancelScope():  # the request may have ended before
                    try:
                        assert (await handle).token_ids == expected
                    except RequestCancelled:
                        got = tuple(token for piece in handle.record.pieces.items for token in piece.token_ids)
                        assert got == expected[: len(got)]
            else:
                assert (await handle).token_ids == expected
    await session.close()
    assert len({id(each.message) for each in records}) == len(records), "a message was taken twice"


async def happen(event: Do, session: Session) -> None:
    match event.what:
        case "pause":
            await session.pause()
            assert session.paused
        case "resume":
            session.resume()
            assert not session.paused
        case "step":
            for _ in range(event.number):
                before = sum(map(len, session.pending.values())) if session.paused else None
                record = await session.step()
                assert session.paused
                if before is not None:
                    assert (record is None) == (before == 0)
        case "in a thread":
            await to_thread.run_sync(session.step_sync)


def check(backend: str, story: list[Ask | Do], limits: dict[str, Any], ending: str) -> None:
    async def guarded() -> None:
        with anyio.fail_after(PATIENCE):
            await play(story, limits, ending)

    anyio.run(guarded, backend=backend)


ENDING = st.sampled_from(["stepped", "resumed"])


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.wide)])
@settings(max_examples=30)
@given(story=STORY, limits=LIMITS, ending=ENDING)
def test_stepped_paused_and_resumed_at_will_requests_get_the_tokens_that_they_get_otherwise(
    backend: str, story: list[Ask | Do], limits: dict[str, Any], ending: str
) -> None:
    check(backend, story, limits, ending)


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=2000, derandomize=False)
@given(story=STORY, limits=LIMITS, ending=ENDING)
def test_in_very_many_stories_requests_get_the_tokens_that_they_get_otherwise(
    backend: str, story: list[Ask | Do], limits: dict[str, Any], ending: str
) -> None:
    check(backend, story, limits, ending)


@pytest.mark.parametrize("overlap", [True, False])
def test_stepping_takes_the_same_messages_in_the_same_order_whoever_steps(overlap: bool) -> None:
    """Check this so that a walk through the engine shows the same each time, awaited or blocking."""

    def walked(how: str) -> list[str]:
        walk: list[str] = []
        with fake_session(overlap=overlap, max_running=2) as session:
            session.pause_sync()
            for number in range(4):
                session.submit(token_ids=[number] * 20, max_tokens=4, seed=number)

            async def walk_on() -> None:
                while (record := await session.step()) is not None:
                    walk.append(repr(record))

            if how == "blocking":
                walk += map(repr, iter(session.step_sync, None))
            else:
                anyio.run(walk_on, backend=how)
        return walk

    first = walked("asyncio")
    assert len(first) > 30
    assert walked("trio") == walked("blocking") == first


# Many at once


async def test_threads_and_loops_step_pause_and_resume_at_once_and_nothing_is_lost(session: Session) -> None:
    records: list[MessageRecord] = []
    step_records: list[MessageRecord] = []  # appending is atomic, so threads need no lock

    def step(times: int) -> None:
        step_records.extend(record for _ in range(times) if (record := session.step_sync()) is not None)

    async def step_on_a_loop(times: int) -> None:
        for _ in range(times):
            if (record := await session.step()) is not None:
                step_records.append(record)

    def go_and_stop(times: int) -> None:
        for _ in range(times):
            session.resume()
            session.pause_sync()

    with session.watch(records.append):
        handles = [session.submit(token_ids=[number] * 9, max_tokens=30) for number in range(6)]
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(partial(to_thread.run_sync, step, 40))
                tasks.start_soon(step_on_a_loop, 40)
            for backend in ("asyncio", "trio"):
                work = partial(anyio.run, step_on_a_loop, 40, backend=backend)
                tasks.start_soon(partial(to_thread.run_sync, work))
            tasks.start_soon(partial(to_thread.run_sync, go_and_stop, 20))
        session.resume()
        for number, handle in enumerate(handles):
            assert (await handle).token_ids == expected_tokens([number] * 9, 30)
        await session.pause()  # so the messages that are still on their way to disk are seen too
    assert len({*map(id, step_records)}) == len(step_records), "no message is given to two who step"
    assert {*map(id, step_records)} <= {*map(id, records)}
    assert len({id(each.message) for each in records}) == len(records)
