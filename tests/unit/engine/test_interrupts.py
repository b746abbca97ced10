"""An interrupt reports the progress of its call, keeps its kind, and has the partial result."""

import asyncio
import sys
import types
from typing import Any

import anyio
import pytest
from IPython.core.formatters import DisplayFormatter

import rekindle
from rekindle import markup
from rekindle.core.concurrency.mailbox import in_trio
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import submitted
from tests.waiting import PATIENCE, until

PROMPT = [3, 1, 4]


def session_with(settler: FakeSettler, **settings: Any) -> Session:
    """Open a session with ticks under the control of a settler."""
    return fake_session(fake_loaded_engine(fake_limits(**settings), settler=settler))


async def cancelled(task: "asyncio.Task[Any]") -> asyncio.CancelledError:
    """Cancel a task, and return its error."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert task.cancelled()
    return caught.value


@pytest.mark.parametrize("method", ["generate", "show"])
def test_a_cancelled_await_says_how_many_tokens_had_come_and_has_them(method: str) -> None:
    async def main() -> None:
        settler = FakeSettler(held=True)
        async with session_with(settler) as session:
            task = asyncio.create_task(getattr(session, method)(token_ids=PROMPT, max_tokens=500))
            (request,) = await submitted(session)
            for _ in range(4):  # and no more, or it might end
                settler.step()
            await until(lambda: len(request.record.pieces.items) == 4, "four tokens had come")
            error: Any = await cancelled(task)
            settler.release()
            came = len(error.generation.token_ids)
            assert came == 4
            assert error.generation.token_ids == expected_tokens(PROMPT, came)
            assert error.generation.finish_reason == "cancelled"
            assert str(error) == f"interrupted after {came} tokens; the text so far is in `generation` of this error"

    asyncio.run(main())


def test_a_cancelled_batch_has_all_texts_so_far_in_their_places() -> None:
    async def main() -> None:
        settler = FakeSettler(held=True)
        async with session_with(settler, max_running=1) as session:
            batch = session.generate(token_ids=[PROMPT, [5], [6]], max_tokens=30)
            task = asyncio.create_task(batch)
            first, second, _ = await submitted(session, 3)
            for _ in range(30):  # those of the first alone
                settler.step()
            await until(lambda: first.done, "the first had ended")
            for _ in range(4):
                settler.step()
            await until(lambda: len(second.record.pieces.items) == 4, "four tokens of the second had come")
            error: Any = await cancelled(task)
            settler.release()
            assert error.finished[0].token_ids == expected_tokens(PROMPT, 30)
            assert error.finished[1].token_ids == expected_tokens([5], 4)
            assert [each.finish_reason for each in error.finished] == ["length", "cancelled", "cancelled"]
            assert error.finished[2].token_ids == ()
            assert str(error) == (
                "interrupted when 1 of 3 requests had ended; `finished` of this error has their answers, and the texts "
                "so far of the others"
            )

    asyncio.run(main())


def test_one_that_had_not_started_has_nothing() -> None:
    async def main() -> None:
        async with session_with(FakeSettler(held=True), max_running=1) as session:
            session.submit(token_ids=PROMPT)
            task = asyncio.create_task(session.generate(token_ids=[7]))
            await submitted(session, 2)
            error: Any = await cancelled(task)
            assert (error.generation.text, error.generation.token_ids, error.generation.prompt_token_ids) == (
                "",
                (),
                (),
            )
            assert str(error).startswith("interrupted after 0 tokens;")
            assert repr(error.generation) == "<rekindle.Generation ended: cancelled, 0 tokens: ()>"

    asyncio.run(main())


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_timeout_scope_and_a_message_of_ones_own_stay_as_they_are() -> None:
    async with session_with(FakeSettler(held=True)) as session:
        with anyio.move_on_after(0.01) as scope:
            await session.generate(token_ids=PROMPT)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.01):
                await session.generate(token_ids=[PROMPT] * 3)


def test_wait_for_and_timeout_of_asyncio_end_as_they_do() -> None:
    async def main() -> None:
        async with session_with(FakeSettler(held=True)) as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.generate(token_ids=PROMPT), 0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await session.generate(token_ids=PROMPT)
            before = {*session.requests}
            task = asyncio.create_task(session.generate(token_ids=PROMPT))
            await until(lambda: not before.issuperset(session.requests), "the request was submitted")
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert caught.value.args == ("enough",)
            assert caught.value.__notes__ == [
                "interrupted after 0 tokens; the text so far is in `generation` of this error"
            ]

    asyncio.run(main())


def test_an_interrupted_embedding_says_how_many_texts_had_ended() -> None:
    async def main() -> None:
        async with session_with(FakeSettler(held=True)) as session:
            task = asyncio.create_task(session.embed(token_ids=[PROMPT, PROMPT[:1]]))
            await submitted(session, 2)
            error = await cancelled(task)
            assert error.args == ("interrupted when 0 of 2 texts had ended",)

    asyncio.run(main())


def test_what_was_drawn_shows_nothing_in_its_cell_and_all_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markup, "cell", lambda: 7)
    with fake_session() as session:
        answer = session.show_sync(token_ids=PROMPT, max_tokens=3)
        assert answer == session.generate_sync(token_ids=PROMPT, max_tokens=3)
    display: Any = DisplayFormatter().format
    assert display(answer) == ({}, {})
    monkeypatch.setattr(markup, "cell", lambda: 8)
    assert "text/html" in display(answer)[0]


def test_an_interrupt_between_two_instructions_of_a_loop_cancels_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise one where no wait hears it, and keep it, as a notebook keeps the last error."""

    def interrupted(waits: object) -> object:
        raise KeyboardInterrupt

    settler = FakeSettler(held=True)
    with session_with(settler) as session:
        stream = session.stream_sync(token_ids=PROMPT, max_tokens=500)
        with monkeypatch.context() as patch:
            patch.setattr("rekindle.client.concurrency.loops.blocked", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        settler.release()
        assert session.generate_sync(token_ids=PROMPT, max_tokens=5).token_ids == expected_tokens(PROMPT, 5)
        assert not session.requests


def test_a_cancellation_that_was_interrupted_is_made_up_for() -> None:
    settler, failing = FakeSettler(held=True), [KeyboardInterrupt()]
    with session_with(settler) as session:
        handle = session.submit(token_ids=PROMPT, max_tokens=500)
        post = handle._post

        def interrupted(message: object) -> None:
            if failing:
                raise failing.pop()
            post(message)  # type: ignore[arg-type]

        handle._post = interrupted
        with pytest.raises(KeyboardInterrupt):
            handle.cancel()
        handle.cancel()
        settler.release()
        with pytest.raises(rekindle.RequestCancelled):
            handle.result(timeout=PATIENCE)


def test_a_thread_is_not_in_trio_while_another_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    assert not in_trio()
