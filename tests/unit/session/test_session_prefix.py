"""A handle of a held prefix continues it, keeps its pages, and releases its pages in every way to leave it."""

import gc
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from rekindle.core.errors import InvalidRequest, SessionClosed
from rekindle.core.request.params import SamplingParams, draws
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from rekindle.views.cache.hottest import RUN_TOKENS
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PAGES = 20
DOCUMENT = list(range(70))
"""A prompt of four whole pages of 16 tokens and six more tokens."""


@pytest.fixture
def session() -> Iterator[Session]:
    with fake_session(page_size=16, num_pages=1 + PAGES, max_running=4, host_cache_bytes=0) as session:
        yield session


@pytest.fixture
def texts(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(page_size=16, num_pages=1 + PAGES)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        yield session


def drain(session: Session) -> Session:
    """Return the session once every message in flight has arrived: a new request comes last."""
    session.generate_sync(token_ids=[250], max_tokens=1)
    return session


def held_pages(session: Session) -> int:
    stats = drain(session).stats.scheduler
    return stats.pages - stats.free_pages


# The facts of a handle


async def test_it_knows_its_tokens_and_what_of_them_was_cached(session: Session) -> None:
    before = session.stats.scheduler.generated_tokens
    async with session.prefix(token_ids=DOCUMENT) as cold:
        assert (cold.tokens, cold.cached_tokens) == (70, 0)
        warm = await session.prefix(token_ids=DOCUMENT)
        assert (warm.tokens, warm.cached_tokens) == (70, 64)
        assert session.stats.scheduler.generated_tokens == before, "a prefix generates nothing"
        assert repr(warm) == "<rekindle.Prefix of 70 tokens>"
    warm.release()
    assert repr(warm) == "<rekindle.Prefix of 70 tokens, released>"


async def test_a_session_without_a_cache_says_that_it_holds_none() -> None:
    with fake_session(prefix_cache=False) as session, pytest.raises(InvalidRequest, match="prefix_cache=False"):
        session.prefix(token_ids=[1] * 40)


async def test_nothing_happens_before_it_is_awaited(session: Session) -> None:
    holding = session.prefix(token_ids=DOCUMENT)
    assert "await it" in repr(holding)
    assert drain(session).stats.scheduler.prompt_tokens == 1


async def test_a_prefix_of_less_than_a_page_can_be_continued_though_it_holds_nothing(session: Session) -> None:
    async with session.prefix(token_ids=[3, 1]) as short:
        assert held_pages(session) == 0
        answer = await short.generate(token_ids=[4], max_tokens=5)
    assert answer.token_ids == expected_tokens([3, 1, 4], 5)


# Requests that continue a prefix


async def test_generate_continues_it_or_begins_right_after_it(session: Session) -> None:
    async with session.prefix(token_ids=DOCUMENT) as document:
        answer = await document.generate(token_ids=[7, 8], max_tokens=5)
        assert (answer.token_ids, answer.cached_tokens) == (expected_tokens([*DOCUMENT, 7, 8], 5), 64)
        assert answer.usage.prompt_tokens == 72
        as_it_is = await document.generate(max_tokens=5)
        assert (as_it_is.token_ids, as_it_is.cached_tokens) == (expected_tokens(DOCUMENT, 5), 64)


async def test_a_batch_n_draws_and_both_have_the_shapes_of_session_generate(session: Session) -> None:
    expected = [expected_tokens([*DOCUMENT, token], 3) for token in (1, 2)]
    seeds = [one.seed or 0 for one in draws(SamplingParams(seed=7), 2)]
    expected_draws = [[expected_tokens([*DOCUMENT, token], 3, draw=seed) for seed in seeds] for token in (1, 2)]
    async with session.prefix(token_ids=DOCUMENT) as document:
        batch = await document.generate(token_ids=[[1], [2]], max_tokens=3)
        assert [answer.token_ids for answer in batch] == expected
        answers = await document.generate(token_ids=[1], n=2, max_tokens=3, seed=7)
        assert [answer.token_ids for answer in answers] == expected_draws[0]
        both = await document.generate(token_ids=[[1], [2]], n=2, max_tokens=3, seed=7)
        assert [[answer.token_ids for answer in group] for group in both] == expected_draws
        assert {answer.cached_tokens for answer in [*batch, *answers, *both[0], *both[1]]} == {64}


async def test_streams_and_blocking_twins_continue_it_too(session: Session) -> None:
    expected = expected_tokens([*DOCUMENT, 9], 4)
    with session.prefix_sync(token_ids=DOCUMENT) as document:
        assert document.generate_sync(token_ids=[9], max_tokens=4).token_ids == expected
        pieces = [piece.token_ids async for piece in document.stream(token_ids=[9], max_tokens=4)]
        assert pieces == [(token,) for token in expected]
        assert [piece.token_ids for piece in document.stream(token_ids=[9], max_tokens=4)] == pieces
    assert held_pages(session) == 0


async def test_what_is_of_the_whole_prefix_is_given_to_it_and_what_is_of_a_draw_to_its_continuations(
    session: Session,
) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^unknown keyword 'temperature'; known are cache_salt, adapter, token_ids, images, tools"
    ):
        session.prefix(token_ids=DOCUMENT, temperature=1.0)  # type: ignore[call-arg]
    async with session.prefix(token_ids=DOCUMENT) as document:
        with pytest.raises(
            InvalidRequest, match=r"^cache_salt is an option of session\.prefix\(\); calls on the prefix inherit"
        ):
            await document.generate(cache_salt="mine")
        with pytest.raises(InvalidRequest, match=r"^tools is an option of session\.prefix"):
            document.stream(tools=[])
        with pytest.raises(InvalidRequest, match=r"unknown keyword 'token_id'; did you mean token_ids"):
            document.generate_sync(token_id=[1])  # type: ignore[call-overload]


async def test_the_salt_of_a_prefix_is_that_of_its_continuations(session: Session) -> None:
    async with session.prefix(token_ids=DOCUMENT, cache_salt="mine") as document:
        assert (await document.generate(token_ids=[9], max_tokens=1)).cached_tokens == 64
        assert (await session.generate(token_ids=DOCUMENT, max_tokens=1)).cached_tokens == 0
        assert (await session.generate(token_ids=DOCUMENT, max_tokens=1, cache_salt="mine")).cached_tokens == 64
        (fork,) = await document.fork(1)
        assert fork.cached_tokens == 64


async def test_text_follows_text_and_a_message_or_the_users_words_follow_messages(texts: Session) -> None:
    """Use a tokenizer of bytes; its chat template writes the contents one after the other."""
    system = [{"role": "system", "content": "You are a patient teacher of counting. "}]
    question = {"role": "user", "content": "One, two?"}
    whole = await texts.generate([*system, question], max_tokens=4, cache_salt="no other")
    async with texts.prefix(system) as teacher:
        for more in ("One, two?", [question]):
            answer = await teacher.generate(more, max_tokens=4)
            assert answer.token_ids == whole.token_ids
            assert answer.usage.prompt_tokens == whole.usage.prompt_tokens
            assert answer.cached_tokens == 32
        several = await teacher.generate(["One?", "One, two?"], max_tokens=4)
        assert several[1].token_ids == whole.token_ids
    async with texts.prefix("You are a patient teacher of counting. ") as text:
        answer = await text.generate("One, two?", max_tokens=4)
    assert (answer.token_ids, answer.cached_tokens) == (whole.token_ids, 32)


async def test_what_cannot_follow_is_said_at_once(texts: Session) -> None:
    messages = [{"role": "user", "content": "Hello there, how are you?"}]
    async with texts.prefix("A text.") as text, texts.prefix(messages) as chat:
        with pytest.raises(InvalidRequest, match="messages cannot follow text or token ids; give a str or token_ids"):
            await text.generate(messages)
        with pytest.raises(InvalidRequest, match="token ids cannot follow messages; give messages, or a str"):
            await chat.generate(token_ids=[1])
        with pytest.raises(InvalidRequest, match="use generate"):
            chat.stream(["a", "b"])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="not both"):
            await text.generate("a", token_ids=[1])
        with pytest.raises(InvalidRequest, match="n must be an integer from 1 to 65536, got 0"):
            await text.fork(0)


# Releasing a prefix


async def test_after_its_release_it_says_so_and_what_was_submitted_goes_on(session: Session) -> None:
    document = await session.prefix(token_ids=DOCUMENT)
    assert held_pages(session) == 4
    stream = document.stream(token_ids=[9], max_tokens=8)
    document.release()
    document.release()
    with pytest.raises(InvalidRequest, match=r"released; make another with session\.prefix"):
        await document.generate(token_ids=[9])
    for ask in (document.stream, document.generate_sync):
        with pytest.raises(InvalidRequest, match=r"released; make another with session\.prefix"):
            ask(token_ids=[9])
    with pytest.raises(InvalidRequest, match="released"):
        await document.fork(2)
    with pytest.raises(InvalidRequest, match="released"):
        document.fork_sync(2)
    tokens = [token for piece in stream for token in piece.token_ids]
    assert tuple(tokens) == expected_tokens([*DOCUMENT, 9], 8)
    assert held_pages(session) == 0


async def test_leaving_the_block_releases_it_also_by_an_error(session: Session) -> None:
    async def fail_while_it_is_held() -> None:
        async with session.prefix(token_ids=DOCUMENT):
            assert held_pages(session) == 4
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        await fail_while_it_is_held()
    with pytest.raises(RuntimeError, match="of the user"), session.prefix_sync(token_ids=DOCUMENT):
        raise RuntimeError("of the user")
    assert held_pages(session) == 0


async def test_forks_are_released_one_by_one_and_the_last_one_lets_go(session: Session) -> None:
    document = await session.prefix(token_ids=DOCUMENT)
    computed = session.stats.scheduler.computed_tokens
    forks = [*await document.fork(2), *document.fork_sync(1)]
    assert [fork.cached_tokens for fork in forks] == [64] * 3
    assert session.stats.scheduler.computed_tokens == computed
    for handle in (document, *forks):
        assert held_pages(session) == 4
        assert session.cache.hottest[0].held_pages == 4
        handle.release()
    assert held_pages(session) == 0
    assert (await session.generate(token_ids=DOCUMENT, max_tokens=1)).cached_tokens == 64, "it may stay in the cache"


async def test_the_cache_shows_no_page_as_held_right_after_its_release(session: Session) -> None:
    def pages_in_view() -> int:
        return sum(path.held_pages for path in session.cache.hottest)

    for _ in range(20):
        async with session.prefix(token_ids=DOCUMENT):
            assert pages_in_view() == 4
        assert pages_in_view() == 0
        assert "held" not in session.cache.draw().text
        request = session.submit(token_ids=DOCUMENT, max_tokens=100)
        await anext(aiter(request))
        request.cancel()
        assert pages_in_view() == 0, "cancelled"
    document = await session.prefix(token_ids=DOCUMENT)
    await session.pause()
    document.release()
    assert pages_in_view() == 4, "a paused engine is shown as it is"
    session.resume()
    assert pages_in_view() == 0


async def test_the_cache_shows_no_page_as_held_right_after_a_stop_string(texts: Session) -> None:
    prompt = "a" * len(DOCUMENT)
    text = (await texts.generate(prompt, max_tokens=40)).text
    for _ in range(20):
        answer = await texts.generate(prompt, max_tokens=1000, stop=text[4:8])
        assert answer.finish_reason == "stop"
        assert sum(path.held_pages for path in texts.cache.hottest) == 0


async def test_a_handle_that_is_dropped_lets_go(session: Session) -> None:
    document = await session.prefix(token_ids=DOCUMENT)
    collected = weakref.ref(document)
    assert held_pages(session) == 4
    del document
    gc.collect()
    assert collected() is None
    assert held_pages(session) == 0


async def test_a_handle_may_outlive_its_session() -> None:
    session = fake_session()
    document = await session.prefix(token_ids=DOCUMENT)
    await session.close()
    with pytest.raises(SessionClosed):
        await document.generate(token_ids=[1])
    document.release()


@pytest.fixture
def slow(settler: FakeSettler) -> Iterator[Session]:
    limits = fake_limits(page_size=16, num_pages=1 + PAGES, max_running=1)
    with fake_session(fake_loaded_engine(limits, settler=settler)) as session:
        yield session


async def hold_for_good(session: Session) -> None:
    await session.prefix(token_ids=DOCUMENT)


async def test_who_stops_waiting_for_a_prefix_holds_nothing(slow: Session, settler: FakeSettler) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold_for_good, slow)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    settler.release()
    assert held_pages(slow) == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_is_interrupted_when_the_prefix_has_just_come_holds_nothing(
    slow: Session, settler: FakeSettler, anyio_backend: str
) -> None:
    """Cancel the waiting task between the engine's report of the held prefix and its arrival at the task."""

    async def hold() -> None:
        async with slow.prefix(token_ids=DOCUMENT):
            raise AssertionError("it was interrupted before")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await anyio.wait_all_tasks_blocked()
        settler.release()
        held_pages(slow)  # this blocks the loop until the engine has answered
        tasks.cancel_scope.cancel()
    assert held_pages(slow) == 0


def test_the_engine_does_not_wait_while_the_texts_of_the_cache_are_made(byte_tokenizer: Tokenizer) -> None:
    class Asking(Tokenizer):
        """A tokenizer that has another thread look into the cache before each long text."""

        def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
            if len(ids := list(ids)) > RUN_TOKENS:
                looked.append(
                    look.submit(
                        lambda: loaded_engine.lanes[0].scheduler.look(lambda trees: trees[0].ledger.nodes)
                    ).result(timeout=PATIENCE)
                )
            return super().decode(ids, skip_special_tokens)

    looked: list[int] = []
    loaded_engine = fake_loaded_engine(fake_limits(page_size=16), tokenizer=Asking(byte_tokenizer.backend))
    with fake_session(loaded_engine) as session, ThreadPoolExecutor(1) as look:
        session.generate_sync(token_ids=list(range(96)), max_tokens=1)
        (path,) = session.cache.hottest
        assert path.text == byte_tokenizer.decode(path.tokens)
        assert looked == [len(path.tokens) // 16]
