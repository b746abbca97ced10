"""A batch is checked before any computation, and a later failure loses no complete answer."""

import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from rekindle.client.batches.run import AT_ONCE
from rekindle.core.errors import (
    BatchFailed,
    InvalidBatch,
    InvalidRequest,
    PromptTooLong,
    RequestCancelled,
    SessionClosed,
)
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_is_free

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
ENDLESS = 4000


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Tokenizer) -> Tokenizer:
    template = (
        "{% for m in messages %}{{ m.content }}{{ raise_exception('no tools here') if m.role == 'tool' }}{% endfor %}"
    )
    return Tokenizer(byte_tokenizer.backend, chat_template=template)


@pytest.fixture
def texts(tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=tokenizer)) as session:
        yield session


def chat(content: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


MIXED: list[Any] = ["a", "b" * 64, "", chat("c"), chat("d", "tool"), 7, "\ud800", [{"role": "user"}], "e"]
"""A batch with valid prompts at 0, 3 and 8 alone."""
MESSAGES = {
    1: "the prompt has 64 tokens; at most 63 fit",
    2: "the prompt is empty",
    4: "the model's chat template rejects the messages: no tools here",
    5: "a prompt is a str, .* got 7",
    6: "the prompt has a lone surrogate",
    7: "has no 'content'",
}


# Before anything is computed


async def test_all_bad_prompts_are_named_by_index_in_one_error_and_nothing_is_computed(texts: Session) -> None:
    for generate in (texts.generate, partial(anyio.to_thread.run_sync, partial(texts.generate_sync, MIXED))):
        with pytest.raises(InvalidBatch, match="6 of 9 prompts cannot be served, and nothing was computed:") as caught:
            await (generate(MIXED, max_tokens=4) if generate == texts.generate else generate())
        assert sorted(caught.value.errors) == sorted(MESSAGES)
        assert isinstance(caught.value.errors[1], PromptTooLong)
    for index, message in MESSAGES.items():
        with pytest.raises(InvalidBatch, match=f"\n  prompt {index}: .*{message}"):
            raise caught.value
    assert texts.stats.scheduler.prompt_tokens == 0
    assert not texts._engine.client._handles


async def test_beyond_ten_bad_prompts_are_counted(texts: Session) -> None:
    with pytest.raises(InvalidBatch, match=r"13 of 14 prompts .*(\n  prompt \d+: .*){10}\n  and 3 more$") as caught:
        await texts.generate(["a", *[""] * 13])
    assert len(caught.value.errors) == 13
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.errors.keys()) == (str(caught.value), caught.value.errors.keys())


async def test_bad_token_ids_are_named_too_and_parameters_are_of_the_call(session: Session, texts: Session) -> None:
    with pytest.raises(
        InvalidBatch, match=r"prompt 1: token_ids is empty.*\n  prompt 2: token_ids must be from 0 to 250"
    ):
        await session.generate(token_ids=[[1], [], [251], [2]])
    with pytest.raises(InvalidRequest, match="together may leave no token") as caught:
        await texts.generate(["a", "b"], allowed_token_ids=[5], bad_words=[[5]])
    assert not isinstance(caught.value, InvalidBatch)
    assert texts.stats.scheduler.prompt_tokens == session.stats.scheduler.prompt_tokens == 0


async def test_a_batch_larger_than_the_queue_is_checked_before_any_of_it_enters(tokenizer: Tokenizer) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_context=64), tokenizer=tokenizer)
    async with fake_session(loaded_engine, max_waiting=4) as session:
        with pytest.raises(InvalidBatch, match=r"1 of 301 prompts .*\n  prompt 300: "):
            await session.generate([*["a"] * 300, "b" * 64])
        assert session.stats.scheduler.prompt_tokens == 0
        answers = await session.generate(["a", "b"] * 150, max_tokens=2)
        expected = [expected_tokens(tokenizer.encode(text), 2) for text in "ab"] * 150
        assert [answer.token_ids for answer in answers] == expected


async def test_a_prompt_of_several_draws_is_tokenized_once_and_fails_as_it_would_alone(tokenizer: Tokenizer) -> None:
    encoded: list[str] = []

    class Counts(Tokenizer):
        def encode(
            self, text: str, add_special_tokens: bool = True, check: Callable[[int], None] | None = None
        ) -> list[int]:
            encoded.append(text)
            return super().encode(text, add_special_tokens, check)

    loaded_engine = fake_loaded_engine(fake_limits(max_context=64), tokenizer=Counts(tokenizer.backend))
    async with fake_session(loaded_engine) as session:
        assert len(await session.generate("abc", n=5, max_tokens=2)) == 5
        assert encoded == ["abc"]
        assert [len(group) for group in await session.generate(["d", "e"], n=3, max_tokens=2)] == [3, 3]
        assert encoded == ["abc", "d", "e"]
        with pytest.raises(PromptTooLong):
            await session.generate("b" * 64, n=3)


class Slow(Tokenizer):
    """A tokenizer that waits for a permit for each text."""

    def __init__(self, like: Tokenizer):
        super().__init__(like.backend)
        self.entered, self.permits, self.encoded = threading.Event(), threading.Semaphore(0), 0
        self.threads: list[threading.Thread] = []

    def encode(
        self, text: str, add_special_tokens: bool = True, check: Callable[[int], None] | None = None
    ) -> list[int]:
        self.threads.append(threading.current_thread())
        self.entered.set()
        self.permits.acquire()
        self.encoded += 1
        return super().encode(text, add_special_tokens, check)


async def test_leaving_the_check_leaves_nothing_behind_and_the_loop_turns_meanwhile(tokenizer: Tokenizer) -> None:
    slow = Slow(tokenizer)
    async with fake_session(fake_loaded_engine(fake_limits(), tokenizer=slow)) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.generate, ["a"] * 50)
            await anyio.to_thread.run_sync(slow.entered.wait)
            (checking,) = slow.threads
            assert checking.name == "rekindle-batch"
            assert (await session.generate(token_ids=PROMPT, max_tokens=3)).token_ids == expected_tokens(PROMPT, 3)
            tasks.cancel_scope.cancel()
        slow.permits.release(50)
        await anyio.to_thread.run_sync(checking.join)
        assert slow.encoded == 1, "the rest is not looked at any more"
        assert not session._engine.client._handles
        assert_all_is_free(session)


# errors="return"


async def test_errors_may_be_returned_in_their_places(texts: Session, tokenizer: Tokenizer) -> None:
    outcomes = await texts.generate(MIXED, max_tokens=4, errors="return")
    for index, outcome in enumerate(outcomes):
        assert isinstance(outcome, InvalidRequest if index in MESSAGES else Generation)
    good = [outcome.token_ids for outcome in outcomes if isinstance(outcome, Generation)]
    assert good == [expected_tokens(tokenizer.encode(text), 4) for text in "ace"]
    groups = texts.generate_sync(["a", ""], n=2, seed=3, max_tokens=4, errors="return")
    assert [[type(outcome) for outcome in group] for group in groups] == [[Generation] * 2, [InvalidRequest] * 2]
    draws = await texts.generate("b" * 64, n=2, errors="return")
    assert [type(outcome) for outcome in draws] == [PromptTooLong] * 2
    assert [type(outcome) for outcome in texts.generate_sync(["", ""], errors="return")] == [InvalidRequest] * 2
    async with texts.prefix("a") as prefix:
        mixed: Any = ["b", chat("c")]
        outcomes = await prefix.generate(mixed, max_tokens=2, errors="return")
        assert [type(outcome) for outcome in outcomes] == [Generation, InvalidRequest]


async def test_errors_are_returned_or_raised_and_only_a_list_has_places_for_them(session: Session) -> None:
    with pytest.raises(InvalidRequest, match='errors must be "raise" or "return", got \'ignore\''):
        await session.generate(token_ids=[PROMPT], errors="ignore")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match='errors="return" puts each error in its place in a list'):
        await session.generate(token_ids=PROMPT, errors="return")  # type: ignore[call-overload]


# A failure later


@pytest.fixture
def one_by_one(settler: FakeSettler) -> Iterator[Session]:
    """Open a session with one slot; a tick settles when it is told to."""
    with fake_session(fake_loaded_engine(fake_limits(max_running=1), settler=settler)) as session:
        yield session


async def failing(session: Session, settler: FakeSettler, outcome: list[Any], **options: Any) -> None:
    """Run a batch of three until its first request has ended, then have somebody else cancel its last."""

    async def ask() -> None:
        try:
            outcome.extend(await session.generate(token_ids=[PROMPT, [5], [6]], max_tokens=1, **options))
        except BatchFailed as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        handles = list(session.requests.values())
        settler.step()
        await handles[0].record.pieces.wait(1)
        handles[2].cancel()
        if "errors" in options:
            settler.release()


async def test_the_first_failure_is_raised_at_once_with_all_that_had_ended(
    one_by_one: Session, settler: FakeSettler
) -> None:
    outcome: list[Any] = []
    await failing(one_by_one, settler, outcome)
    (error,) = outcome
    assert isinstance(error, BatchFailed)
    assert isinstance(error.__cause__, RequestCancelled)
    first, second, third = error.results
    assert first.token_ids == expected_tokens(PROMPT, 1)
    assert second is None, "it was running, and its turn would have come before"
    assert third is error.__cause__
    assert str(error).startswith(
        "request 2 of 3 failed: the request was cancelled. Its error is the cause of this error; 1"
    )
    assert pickle.loads(pickle.dumps(error)).results[0] == first
    settler.release()
    await one_by_one.generate(token_ids=PROMPT, max_tokens=1)
    assert_all_is_free(one_by_one)


async def test_a_failure_that_is_returned_ends_no_other_request(one_by_one: Session, settler: FakeSettler) -> None:
    outcome: list[Any] = []
    await failing(one_by_one, settler, outcome, errors="return")
    first, second, third = outcome
    assert (first.token_ids, second.token_ids) == (expected_tokens(PROMPT, 1), expected_tokens([5], 1))
    assert isinstance(third, RequestCancelled)


async def test_what_had_ended_survives_the_end_of_the_session(one_by_one: Session, settler: FakeSettler) -> None:
    caught: list[BatchFailed] = []

    async def ask() -> None:
        try:
            await one_by_one.generate(token_ids=[PROMPT, [5]], max_tokens=1)
        except BatchFailed as error:
            caught.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        (first, _) = one_by_one.requests.values()
        settler.step()
        await first.record.pieces.wait(1)
        await one_by_one.close()
    assert caught[0].results[0].token_ids == expected_tokens(PROMPT, 1)
    assert isinstance(caught[0].__cause__, SessionClosed)


@pytest.mark.parametrize("way", ["generate", "score"])
async def test_other_tasks_run_while_many_requests_are_submitted(texts: Session, way: str) -> None:
    many, partly = 10 * AT_ONCE, 0
    answer = partial(texts.generate, token_ids=[PROMPT] * many, max_tokens=1)
    call = answer if way == "generate" else partial(texts.score, "a", [str(each) for each in range(many)])
    async with anyio.create_task_group() as tasks:
        await texts.pause()
        tasks.start_soon(call)
        with anyio.fail_after(10):
            while (count := len(texts.requests)) < many:
                partly += count > 0
                await anyio.lowlevel.checkpoint()
        assert partly >= 8
        texts.resume()
        tasks.cancel_scope.cancel()
