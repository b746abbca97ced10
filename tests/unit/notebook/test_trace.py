"""A trace keeps a bounded number of words and numbers of every message, and lets go of everything else."""

import gc
from types import ModuleType

import pytest

from rekindle.core.errors import ConfigError, SessionClosed, SessionError
from rekindle.core.messages import (
    Cancel,
    Dispatched,
    Fetched,
    Gathered,
    Message,
    NewWeights,
    Onload,
    Plan,
    Text,
    Texts,
    UseWeights,
    Write,
)
from rekindle.core.messages.record import MessageRecord
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_session
from rekindle.views.records import trace_record
from tests.unit.cards import HOSTILE, page_of
from tests.unit.traces import traced
from tests.waiting import until_blocking

PROMPT = [3, 1, 4]


def test_each_message_that_is_handled_is_recorded_once_in_order(session: Session) -> None:
    watched: list[MessageRecord] = []
    with session.watch(watched.append), session.trace() as trace:
        session.generate_sync(token_ids=[PROMPT, [7] * 40], max_tokens=20)
        session.pause_sync()
    assert [repr(one) for one in trace.records] == [repr(each) for each in watched]
    assert [one.kind for one in trace.records] == [type(each.message).__name__ for each in watched]
    kinds = [one.kind for one in trace.records]
    assert kinds[:2] == ["Submit", "Submit"] or kinds[:2] == ["Submit", "Admit"]
    assert kinds.count("Plan") == session.stats.scheduler.ticks
    assert 20 <= kinds.count("Outputs") <= 40
    assert all(0 <= one.began <= one.ended <= trace.seconds for one in trace.records)


def test_nothing_is_recorded_after_the_with_and_tracing_changes_nothing(session: Session) -> None:
    with session.trace() as trace:
        generation = session.generate_sync(token_ids=PROMPT, max_tokens=5)
    assert generation.token_ids == expected_tokens(PROMPT, 5)
    recorded, seconds = trace.records, trace.seconds
    trace._observe(MessageRecord("intake", Cancel(0), (), 0.0, 1.0))  # the engine may have been about to do this
    session.generate_sync(token_ids=PROMPT, max_tokens=5)
    assert (trace.records, trace.seconds) == (recorded, seconds)
    assert {request for one in recorded for request in one.requests} == {0}


def test_it_can_be_looked_at_while_it_records(held_session: Session, settler: FakeSettler) -> None:
    with held_session.trace() as trace:
        handle = held_session.submit(token_ids=PROMPT, max_tokens=5)
        until_blocking(lambda: any(one.kind == "Plan" for one in trace.records), "a plan is seen")
        assert "recording" in repr(trace)
        assert "unfinished" in trace.timeline().text
        settler.release()
        handle.result()
    assert "recorded" in repr(trace)
    assert "3 + 5, length" in trace.timeline().text


def test_of_more_messages_than_are_kept_the_oldest_are_dropped_and_that_is_said(session: Session) -> None:
    with session.trace() as whole, session.trace(most=20) as trace:
        session.generate_sync(token_ids=PROMPT, max_tokens=50)
        session.pause_sync()
    assert len(trace.records) == 20
    assert [one[:4] for one in trace.records] == [one[:4] for one in whole.records[-20:]]
    assert trace.dropped == len(whole.records) - 20
    assert f"(the oldest {trace.dropped} dropped)" in repr(trace)
    assert f"the oldest {trace.dropped} messages dropped" in trace.timeline().text
    assert whole.dropped == 0


def test_it_says_how_much_it_saw(session: Session) -> None:
    with session.trace() as trace:
        session.generate_sync(token_ids=[PROMPT, [5]], max_tokens=4)
    counts = f"recorded: {len(trace.records)} messages, {session.stats.scheduler.ticks} ticks, 2 requests, "
    assert counts in repr(trace)
    assert counts in page_of(trace).text
    with session.trace() as trace:
        session.step_sync()
        session.submit(token_ids=PROMPT).cancel()
        session.step_sync()
    assert "recorded: 1 message, 0 ticks, 1 request, " in repr(trace)


def test_a_trace_is_of_one_with_statement_and_of_an_open_session(session: Session) -> None:
    with session.trace() as trace:
        pass
    with pytest.raises(SessionError, match="one with statement"), trace:
        pass
    for most in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="most must be a positive integer"):
            session.trace(most=most)  # type: ignore[arg-type]
    with fake_session() as closed:
        closed_trace = closed.trace()
    with pytest.raises(SessionClosed), closed_trace:
        pass
    assert repr(closed_trace) == "<rekindle.Trace not begun: 0 messages, 0 ticks, 0 requests, 0.0 ms>"
    assert closed.trace().records == ()


class Array:
    """A stand-in for a device array."""


def reachable(thing: object) -> list[object]:
    """Return everything that an object keeps alive, without code."""
    objects: dict[int, object] = {}
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in objects and not isinstance(one, type | ModuleType):
            objects[id(one)] = one
            waiting += gc.get_referents(one)
    return list(objects.values())


def test_a_record_holds_none_of_what_a_message_carries() -> None:
    array = Array()
    messages: list[Message] = [
        Dispatched(1, (), (), array),
        Gathered(1, (1,), (array,)),
        Fetched(1, (array,)),
        Write((), (array,), ()),
        NewWeights(1, [array]),
        UseWeights(1, [array], 1),
        Plan(1, (), (), (Onload((array,), (1,)),)),
    ]
    for message in messages:
        assert any(one is array for one in reachable(message)), "the walk does not find what it is to find"
        for record in (
            MessageRecord("stepper", message, (), 0.0, 1.0),
            MessageRecord("stepper", messages[0], (message,), 0.0, 1.0),
        ):
            objects = reachable(trace_record(record, 0.0))
            assert not any(isinstance(one, Array) for one in objects)
            assert not any(isinstance(one, Message) for one in objects)


def test_a_trace_that_has_ended_keeps_nothing_of_its_session() -> None:
    trace, _ = traced()
    objects = reachable(vars(trace))
    plain = (str, int, float, tuple, dict, type(None), bool)
    assert {type(one) for one in objects if not isinstance(one, plain)} <= {type(trace._records), type(trace._lock)}


def test_what_it_keeps_of_a_long_text_is_its_beginning() -> None:
    texts = Texts((Text(1, HOSTILE * 1000, (), None),))
    record = trace_record(MessageRecord("detokenizer", texts, (texts,), 0.0, 1.0), 0.0)
    assert len(repr(record)) < 500
