"""While texts are tokenized, everything else goes on; and each caller's requests are admitted in their order."""

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.assembly.looking import Looks
from rekindle.assembly.preparing.preparer import TOKENIZED_AT_ONCE, Preparer
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.client.concurrency.caller import current_caller
from rekindle.core.concurrency.feed import Feed
from rekindle.core.engine.actors.intake import Intake
from rekindle.core.errors import InvalidRequest, PromptTooLong, RequestCancelled, SessionClosed
from rekindle.core.messages import Admit, Cancel, Message, Rejected, Submit, Tokenize, Tokenized, Withdraw
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_is_free
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PARAMS = SamplingParams(max_tokens=3)


class SlowTokenizer(Tokenizer):
    """A tokenizer that is as slow as a test likes.

    Attributes:
        began: all texts so far, in order.
    """

    def __init__(self, fast: Tokenizer):
        super().__init__(fast.backend, fast.chat_template)
        self.began: Feed[str] = Feed()
        self._may = defaultdict[str, threading.Event](threading.Event)

    def encode(
        self, text: str, add_special_tokens: bool = True, check: Callable[[int], None] | None = None
    ) -> list[int]:
        self.began.put(text)
        assert self._may[text].wait(PATIENCE), f"nobody has let {text!r} go on"
        return super().encode(text, add_special_tokens, check)

    def let(self, *texts: str) -> None:
        """Let the texts be tokenized, now or later."""
        for text in texts:
            self._may[text].set()


@pytest.fixture
def slow(byte_tokenizer: Tokenizer) -> SlowTokenizer:
    return SlowTokenizer(byte_tokenizer)


@pytest.fixture
def session(slow: SlowTokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=slow)) as session:
        yield session


# Sessions


async def test_while_a_text_is_tokenized_other_callers_generate_and_cancel(
    session: Session, slow: SlowTokenizer
) -> None:
    first = session.submit("first", max_tokens=3)
    await slow.began.wait(0)

    async def another() -> None:
        assert (await session.generate(token_ids=[3], max_tokens=40)).token_ids == expected_tokens([3], 40)
        endless = session.submit(token_ids=[1], max_tokens=4000)
        endless.cancel()
        with pytest.raises(RequestCancelled):
            await endless

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(another)
    assert not first.done
    slow.let("first")
    assert (await first).token_ids == expected_tokens(slow.encode("first"), 3)


async def test_a_request_whose_text_is_being_tokenized_is_cancelled_at_once_and_nothing_comes_of_it(
    session: Session, slow: SlowTokenizer
) -> None:
    first = session.submit("first")
    await slow.began.wait(0)
    first.cancel()
    with pytest.raises(RequestCancelled, match="the request was cancelled"):
        await first
    assert session.requests == {}
    assert (await session.generate(token_ids=[3], max_tokens=2)).token_ids == expected_tokens([3], 2)
    slow.let("first", "second")
    assert (await session.generate("second", max_tokens=1)).token_ids
    assert session.stats.scheduler.ended == 2
    assert_all_is_free(session)


async def test_a_callers_requests_keep_their_order_though_some_need_no_tokenizing(
    session: Session, slow: SlowTokenizer
) -> None:
    started: list[int] = []

    def see(record: Any) -> None:
        started.extend(each.request.id for each in record.answers if isinstance(each, Admit))

    with session.watch(see):
        handles = [session.submit("first", max_tokens=1), session.submit(token_ids=[5], max_tokens=1)]
        handles += [session.submit("third", max_tokens=1), session.submit(token_ids=[7], max_tokens=1)]
        await slow.began.wait(0)
        assert list(slow.began.items) == ["first"], "no more than one of a caller is tokenized"
        slow.let("third", "first")
        for handle in handles:
            await handle
    assert started == [0, 1, 2, 3]


async def test_no_more_than_two_texts_are_tokenized_at_once(
    session: Session, slow: SlowTokenizer, byte_tokenizer: Tokenizer
) -> None:
    texts = [f"text {number}" for number in range(5)]

    async def ask(text: str) -> None:
        assert (await session.generate(text, max_tokens=2)).token_ids == expected_tokens(byte_tokenizer.encode(text), 2)

    async with anyio.create_task_group() as tasks:
        for text in texts:
            tasks.start_soon(ask, text)
            await anyio.wait_all_tasks_blocked()
        for done in range(len(texts)):
            most = min(len(texts), done + TOKENIZED_AT_ONCE)
            await slow.began.wait(most - 1)
            await session.generate(token_ids=[1], max_tokens=1)  # the engine has had time for more
            assert sorted(slow.began.items) == texts[:most]
            slow.let(texts[done])


async def test_a_pause_waits_for_what_is_being_tokenized_and_a_step_is_one_text(
    session: Session, slow: SlowTokenizer
) -> None:
    first = session.submit("first", max_tokens=1)
    await slow.began.wait(0)
    paused: list[bool] = []

    async def pause() -> None:
        await session.pause()
        paused.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pause)
        await anyio.wait_all_tasks_blocked()
        assert not paused
        slow.let("first", "second")
    assert [type(message) for message in session.pending["intake"]] == [Tokenized]
    second = session.submit("second", max_tokens=1)
    actors = []
    while (record := await session.step()) is not None:
        actors.append((record.actor, type(record.message)))
    assert actors[:3] == [("intake", Tokenized), ("intake", Submit), ("scheduler", Admit)]
    assert ("tokenizer", Tokenize) in actors
    assert first.result().token_ids
    assert second.result().token_ids


async def test_a_session_closes_though_a_text_is_being_tokenized(session: Session, slow: SlowTokenizer) -> None:
    first = session.submit("first")
    await slow.began.wait(0)
    await session.close()
    with pytest.raises(SessionClosed):
        await first
    slow.let("first")


async def test_the_tasks_and_threads_that_run_are_callers_of_their_own() -> None:
    client: set[int] = {current_caller()}
    assert current_caller() in client

    async def note() -> None:
        client.add(current_caller())
        await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(note)
        await to_thread.run_sync(lambda: client.add(current_caller()))
    assert len(client) == 5


def test_other_threads_go_on_while_a_text_is_encoded(smollm2_tokenizer: Tokenizer) -> None:
    """Check the release of the interpreter's lock; the interpreter itself takes it from nobody here."""
    text = "The quick brown fox jumps over the lazy dog. " * 20_000

    def goes_on() -> bool:
        began, ended = threading.Event(), threading.Event()

        def encode() -> None:
            began.set()
            smollm2_tokenizer.encode(text)
            ended.set()

        thread = threading.Thread(target=encode)
        thread.start()
        began.wait()
        meanwhile = not ended.is_set()
        thread.join()
        return meanwhile

    before = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE)
    try:
        # A busy machine may give this thread no core until a text is encoded, but hardly each time.
        assert any(goes_on() for _ in range(9))
    finally:
        sys.setswitchinterval(before)


# The intake by hand


class ByHand:
    """An intake, and the requests at the tokenizer.

    Attributes:
        away: their submits, oldest first.
        answers: all other answers.
    """

    def __init__(self, tokenizer: Tokenizer, at_once: int = TOKENIZED_AT_ONCE):
        self.preparer = Preparer(PromptReader(tokenizer, VOCAB_SIZE, 50), frozenset(), None, Looks(50, 0, 0))
        self.intake = Intake(self.preparer, at_once)
        self.away: deque[Submit] = deque()
        self.answers: list[Message] = []

    def say(self, message: Message) -> None:
        for answer in self.intake.handle(message):
            if isinstance(answer, Tokenize):
                self.away.append(answer.submit)
            else:
                self.answers.append(answer)

    def tokenize(self, place: int = 0) -> None:
        submit = self.away[place]
        del self.away[place]
        self.say(Tokenized(submit.request_id, self.preparer.outcome(submit)))

    @property
    def admitted(self) -> list[int]:
        return [each.request.id for each in self.answers if isinstance(each, Admit)]


def test_callers_take_turns_at_the_tokenizer(byte_tokenizer: Tokenizer) -> None:
    one = ByHand(byte_tokenizer, at_once=1)
    for request_id, caller in enumerate([1, 1, 1, 2, 2, 3]):
        one.say(Submit(request_id, "text", PARAMS, caller=caller))
    while one.away:
        one.tokenize()
    assert one.admitted == [0, 1, 3, 5, 2, 4]


def test_one_that_waits_behind_another_is_cancelled_at_once(byte_tokenizer: Tokenizer) -> None:
    one = ByHand(byte_tokenizer)
    for request_id in range(3):
        one.say(Submit(request_id, "text", PARAMS))
    one.say(Cancel(1))
    (rejected,) = one.answers
    assert isinstance(rejected, Rejected)
    assert rejected.request_id == 1
    assert isinstance(rejected.error, RequestCancelled)
    one.tokenize()
    one.tokenize()
    assert one.admitted == [0, 2]
    one.say(Cancel(2))
    assert one.answers[-1] == Withdraw(2)


def test_one_that_is_turned_away_by_the_tokenizer_lets_the_next_go_on(byte_tokenizer: Tokenizer) -> None:
    one = ByHand(byte_tokenizer)
    one.say(Submit(0, "much too long" * 9, PARAMS))
    one.say(Submit(1, (999,), PARAMS))
    one.say(Submit(2, (9,), PARAMS))
    for _ in range(3):
        one.tokenize()
    errors = [type(each.error) for each in one.answers if isinstance(each, Rejected)]
    assert errors == [PromptTooLong, InvalidRequest]
    assert one.admitted == [2]


def test_a_bad_request_among_quick_ones_is_turned_away_alone(byte_tokenizer: Tokenizer) -> None:
    one = ByHand(byte_tokenizer)
    for request_id, token in enumerate((1, 999, 2)):
        one.say(Submit(request_id, (token,), PARAMS))
    assert [type(each) for each in one.answers] == [Admit, Rejected, Admit]
    assert not one.away


EVENTS = st.lists(
    st.tuples(st.just("submit"), st.integers(0, 3), st.booleans())
    | st.tuples(st.just("tokenize"), st.integers(0, 1), st.none())
    | st.tuples(st.just("cancel"), st.integers(0, 20), st.none()),
    max_size=60,
)


@settings(max_examples=300)
@given(events=EVENTS, at_once=st.integers(1, 3))
def test_whatever_comes_each_request_is_answered_once_and_each_callers_are_admitted_in_order(
    events: list[tuple[str, int, Any]], at_once: int, byte_tokenizer: Tokenizer
) -> None:
    one, submits, cancelled = ByHand(byte_tokenizer, at_once), list[Submit](), set[int]()
    for what, number, text in events:
        if what == "submit":
            submits.append(Submit(len(submits), "text" if text else (1, 2), PARAMS, caller=number))
            one.say(submits[-1])
        elif what == "tokenize" and number < len(one.away):
            one.tokenize(number)
        elif what == "cancel" and number < len(submits) and number not in cancelled:
            admitted, before = number in one.admitted, len(one.answers)
            one.say(Cancel(number))
            answers = [each for each in one.answers[before:] if number in each.requests]
            assert [type(each) for each in answers] == [Withdraw if admitted else Rejected], "it is told at once"
            cancelled.add(number)
        assert len(one.away) <= at_once
        assert len({submit.caller for submit in one.away if submit.request_id not in cancelled}) == len(
            [submit for submit in one.away if submit.request_id not in cancelled]
        )
    while one.away:
        one.tokenize()
    turned_away = [each.requests[0] for each in one.answers if isinstance(each, Rejected)]
    assert sorted([*one.admitted, *turned_away]) == [submit.request_id for submit in submits]
    for caller in range(4):
        mine = [each for each in one.admitted if submits[each].caller == caller]
        assert mine == sorted(mine)
    assert not vars(one.intake)["_queues"]
    assert not vars(one.intake)["_away"]
