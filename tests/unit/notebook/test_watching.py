"""A watcher of an engine is told of every message once, and changes nothing."""

import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rekindle.core.concurrency.feed import Feed
from rekindle.core.engine.actor import Actor
from rekindle.core.errors import ConfigError, EngineFailed, SessionClosed
from rekindle.core.messages import Message, Outputs, Submit, Texts
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

PROMPT = [3, 1, 4]


def tokens_of(records: list[MessageRecord]) -> list[int]:
    """Return the tokens of the texts that were said."""
    texts = [text for each in records for answer in each.answers if isinstance(answer, Texts) for text in answer.texts]
    return [token for text in texts for token in text.token_ids]


def nothing(record: MessageRecord) -> None:
    pass


# The messages that are seen


async def test_every_message_is_seen_once_in_order_with_all_that_was_said_to_it(session: Session) -> None:
    records: list[MessageRecord] = []
    takers = {
        kind: name
        for name, actor in vars(session._engine.facts.lanes[0].actors).items()
        for kind in _kinds(session, actor)
    }
    with session.watch(records.append):
        await session.generate(token_ids=[PROMPT, [7] * 40], max_tokens=20)
        await session.generate(token_ids=PROMPT, max_tokens=1)
    answers: dict[str, list[Message]] = {name: [] for name in takers.values()}
    for record in records:
        assert record.actor == takers[type(record.message)]
        for message in record.answers:
            if type(message) in takers:
                answers[takers[type(message)]].append(message)
    for actor, messages in answers.items():
        took = [each.message for each in records if each.actor == actor and not isinstance(each.message, Submit)]
        assert [*map(id, took)] == [*map(id, messages)][: len(took)], "each once, in the order in which they were said"
        # After the last answer only cached pages are still on their way to disk.
        assert len(took) == len(messages) or actor in ("scheduler", "stepper", "host_tier", "disk_tier")
    assert [each.message.request_id for each in records if isinstance(each.message, Submit)] == [0, 1, 2]
    for record in records:
        assert record.began <= record.ended
    assert all(earlier.ended <= later.ended for earlier, later in pairwise(records))


def _kinds(session: Session, actor: Actor) -> list[type]:
    return [kind for kind, taker in session._engine.facts.lanes[0].actors.by_message().items() if taker is actor]


async def test_all_that_led_to_an_answer_is_seen_before_the_answer_comes(session: Session) -> None:
    records: list[MessageRecord] = []
    with session.watch(records.append):
        for _ in range(20):
            records.clear()
            generation = await session.generate(token_ids=PROMPT, max_tokens=4)
            assert tokens_of(list(records)) == list(generation.token_ids)


async def test_it_may_begin_and_end_in_the_middle_of_a_request() -> None:
    settler, records = FakeSettler(held=True), Feed[MessageRecord]()
    with fake_session(fake_loaded_engine(fake_limits(overlap=False), settler=settler)) as session:
        handle = session.submit(token_ids=PROMPT, max_tokens=6)
        stream = aiter(handle)
        settler.step()
        await anext(stream)
        with session.watch(records.put):
            settler.step()
            await anext(stream)
        after = len(records.items)
        settler.release()
        assert (await handle).token_ids == expected_tokens(PROMPT, 6)
        assert len(records.items) == after, "told no more once the block is left"
        assert not any(isinstance(each.message, Submit) for each in records.items)
        assert tokens_of(list(records.items)) == [expected_tokens(PROMPT, 6)[1]]


async def test_one_function_in_two_blocks_is_told_twice_and_then_once(session: Session) -> None:
    records: list[MessageRecord] = []
    with session.watch(records.append):
        with session.watch(records.append):
            await session.generate(token_ids=PROMPT, max_tokens=2)
            assert tokens_of(records) == [token for token in expected_tokens(PROMPT, 2) for _ in range(2)]
        records.clear()
        await session.generate(token_ids=PROMPT, max_tokens=2)
        assert tokens_of(records) == list(expected_tokens(PROMPT, 2))
    records.clear()
    await session.generate(token_ids=PROMPT, max_tokens=2)
    assert not records


async def test_watching_changes_no_token(session: Session) -> None:
    ask: dict[str, Any] = {"token_ids": [[number] * (number + 1) for number in range(20)], "max_tokens": 9}
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 3}
    alone = [await session.generate(**ask), await session.generate(**ask, **sampled)]
    with session.watch(nothing), session.watch(nothing):
        watched = [await session.generate(**ask), await session.generate(**ask, **sampled)]
    assert watched == alone


async def test_steps_are_seen_too(session: Session) -> None:
    records: list[MessageRecord] = []
    await session.pause()
    handle = session.submit(token_ids=PROMPT, max_tokens=3)
    with session.watch(records.append):
        stepped = []
        while (record := await session.step()) is not None:
            stepped.append(record)
    assert [*map(id, records)] == [*map(id, stepped)]
    assert handle.done


# Errors


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
async def test_one_that_raises_is_told_no_more_and_its_error_comes_out_of_the_block(
    session: Session, error: type[BaseException]
) -> None:
    records: list[MessageRecord] = []
    others: list[MessageRecord] = []

    def see(record: MessageRecord) -> None:
        records.append(record)
        if isinstance(record.message, Outputs):
            raise error("seen enough")

    with pytest.raises(error, match="seen enough"), session.watch(others.append), session.watch(see):
        generation = await session.generate(token_ids=PROMPT, max_tokens=5)
    assert generation.token_ids == expected_tokens(PROMPT, 5), "who asked is not disturbed"
    assert [isinstance(each.message, Outputs) for each in records].count(True) == 1
    assert isinstance(records[-1].message, Outputs)
    assert tokens_of(others) == list(generation.token_ids), "nor is who else watches"
    assert (await session.generate(token_ids=PROMPT, max_tokens=5)).token_ids == generation.token_ids


async def test_an_error_of_the_block_itself_is_not_hidden_by_that_of_who_watches(session: Session) -> None:
    def see(record: MessageRecord) -> None:
        raise ZeroDivisionError

    async def block() -> None:
        with session.watch(see):
            await session.generate(token_ids=PROMPT, max_tokens=1)
            raise KeyError("the block's")

    with pytest.raises(KeyError, match="the block's"):
        await block()


async def test_a_closed_session_cannot_be_watched_and_one_that_closes_meanwhile_is_left_well(session: Session) -> None:
    with session.watch(nothing):
        await session.close()
    with pytest.raises(SessionClosed), session.watch(nothing):
        pass


async def test_a_message_whose_actor_fails_is_not_seen_and_the_block_is_left_with_the_engines_error() -> None:
    class Failing(FakeSettler):
        async def handle(self, message: Message) -> list[Message]:
            raise OSError("the device is gone")

    records: list[MessageRecord] = []
    with fake_session(fake_loaded_engine(fake_limits(), settler=Failing())) as session:
        with pytest.raises(EngineFailed, match="the device is gone"), session.watch(records.append):
            await session.generate(token_ids=PROMPT)
        assert {each.actor for each in records} == {"intake", "scheduler", "stepper"}


async def test_who_is_no_function_is_refused_at_the_call(session: Session) -> None:
    wrong: Any = None
    with pytest.raises(ConfigError, match=r"see must be a function that takes a rekindle\.MessageRecord, got None"):
        session.watch(wrong)


async def test_it_says_what_it_is_and_whether_it_watches(session: Session) -> None:
    watching = session.watch(print)
    off = "<rekindle.Watching by <built-in function print>, off: enter it with 'with'>"
    assert repr(watching) == off
    with watching:
        assert repr(watching) == "<rekindle.Watching by <built-in function print>, on>"
    assert repr(watching) == off
    session.close_sync()
    with pytest.raises(SessionClosed):
        watching.__enter__()
    assert repr(watching) == off


# Threads


async def test_blocks_of_many_threads_do_not_lose_each_other(session: Session) -> None:
    before = sys.getswitchinterval()
    engine = session._engine.thread._engine
    assert engine is not None
    watchers = dict(engine._watchers)
    counts: Counter[int] = Counter()

    def watch(number: int) -> None:
        for _ in range(100):
            with session.watch(nothing):
                pass
        with session.watch(lambda record: counts.update([number])):
            session.generate_sync(token_ids=PROMPT, max_tokens=2)

    sys.setswitchinterval(1e-6)
    try:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(partial(to_thread.run_sync, watch, number))
    finally:
        sys.setswitchinterval(before)
    assert set(counts) == set(range(4)), "a block was forgotten"
    assert engine._watchers == watchers, "a block was not left"
