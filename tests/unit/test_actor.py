"""Messages arrive in order, from any thread, and a sleeper is woken once, whatever loop it sleeps on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from rekindle import actor
from rekindle.actor import Mailbox, Waiter, run
from rekindle.feed import Feed
from rekindle.messages import Cancel, Message, Withdraw

pytestmark = pytest.mark.anyio


async def test_messages_are_received_in_the_order_in_which_they_were_put() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in range(5):
        mailbox.put(number)
    assert [await mailbox.receive() for _ in range(5)] == list(range(5))


async def test_a_receiver_that_sleeps_is_woken_by_its_own_loop_and_by_a_thread() -> None:
    mailbox: Mailbox[str] = Mailbox()
    received: list[str] = []

    async def receive() -> None:
        for _ in range(2):
            received.append(await mailbox.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        mailbox.put("loop")
        await anyio.wait_all_tasks_blocked()
        assert received == ["loop"]
        await to_thread.run_sync(mailbox.put, "thread")
    assert received == ["loop", "thread"]


async def test_nothing_is_lost_and_each_threads_messages_keep_their_order() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def send(thread: int) -> None:
        for number in range(500):
            mailbox.put((thread, number))

    received = []
    async with anyio.create_task_group() as tasks:
        for thread in range(4):
            tasks.start_soon(to_thread.run_sync, send, thread)
        for _ in range(2000):
            received.append(await mailbox.receive())
    for thread in range(4):
        assert [number for sender, number in received if sender == thread] == list(range(500))


async def test_a_message_that_comes_just_before_the_receiver_sleeps_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mailbox: Mailbox[str] = Mailbox()
    feed: Feed[str] = Feed()

    def racing() -> Waiter:
        mailbox.put("between")
        feed.put("between")
        return Waiter()

    monkeypatch.setattr(actor, "Waiter", racing)
    monkeypatch.setattr("rekindle.feed.Waiter", racing)
    ended: list[str] = []

    async def receive() -> None:
        ended.append(await mailbox.receive())

    async def read() -> None:
        await feed.grown(len(feed.items))
        ended.append("read")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert ended == ["between", "read"]


async def test_a_receiver_that_was_cancelled_loses_no_message() -> None:
    mailbox: Mailbox[str] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.receive)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    mailbox.put("late")
    assert await mailbox.receive() == "late"


async def test_at_most_one_call_reaches_the_loop_of_a_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter()
    calls: list[object] = []
    call_soon = waiter._call_soon

    def counted(call: Callable[[], object]) -> object:
        calls.append(call)
        return call_soon(call)

    monkeypatch.setattr(waiter, "_call_soon", counted)

    def wake() -> None:
        for _ in range(10):
            waiter.wake()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(waiter.wait, pulse=True))
        await anyio.wait_all_tasks_blocked()
        await to_thread.run_sync(wake)
    assert len(calls) == 1


@pytest.mark.parametrize("pulse", [True, False])
async def test_a_wake_before_the_wait_ends_it_at_once(pulse: bool) -> None:
    waiter = Waiter()
    waiter.wake()
    await waiter.wait(pulse=pulse)


async def test_a_callers_loop_keeps_turning_while_it_waits_and_the_engines_does_not(
    monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """Under asyncio, that is; trio sees a signal by itself."""
    beats: list[asyncio.TimerHandle] = []
    beat = actor._Pulses._beat

    def counted(pulses: actor._Pulses) -> None:
        beat(pulses)
        beats.append(pulses._timer)
        if len(beats) == 3:
            waiter.wake()

    monkeypatch.setattr(actor, "PULSE_SECONDS", 0.001)
    monkeypatch.setattr(actor._Pulses, "_beat", counted)
    waiter = Waiter()
    if anyio_backend_name == "trio":
        waiter.wake()
    await waiter.wait(pulse=True)
    assert len(beats) == (3 if anyio_backend_name == "asyncio" else 0)
    assert all(timer.cancelled() for timer in beats[-1:]), "a wait that is over leaves no timer behind"
    seen = len(beats)
    waiter = Waiter()
    waiter.wake()
    await waiter.wait(pulse=False)
    assert len(beats) == seen


class Echo:
    """Answers a Cancel with two messages, a Withdraw with none, and anything else with an error."""

    def __init__(self) -> None:
        self.handled: list[Message] = []

    def handle(self, message: Message) -> Iterator[Message]:
        self.handled.append(message)
        match message:
            case Cancel(number):
                yield Withdraw(number)
                yield Withdraw(-number)
            case Withdraw():
                pass
            case _:
                raise TypeError(f"unexpected {message!r}")


class SlowEcho(Echo):
    """The same, awaitable."""

    def handle(self, message: Message) -> Awaitable[list[Message]]:  # type: ignore[override]
        async def answer() -> list[Message]:
            await checkpoint()
            return list(Echo.handle(self, message))

        return answer()


@pytest.mark.parametrize("echo", [Echo(), SlowEcho()], ids=["synchronous", "awaitable"])
async def test_an_actor_takes_one_message_after_the_other_and_its_answers_are_sent_on(echo: Any) -> None:
    mailbox: Mailbox[Message] = Mailbox()
    sent: list[Message] = []
    messages: list[Message] = [Cancel(1), Withdraw(5), Cancel(2)]
    echo.handled.clear()  # it is made once for both backends
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, echo, mailbox, sent.append)
        for message in messages:
            mailbox.put(message)
        await anyio.wait_all_tasks_blocked()
        assert echo.handled == messages
        assert sent == [Withdraw(1), Withdraw(-1), Withdraw(2), Withdraw(-2)]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("echo", [Echo(), SlowEcho()], ids=["synchronous", "awaitable"])
async def test_an_error_in_an_actor_comes_out_of_its_loop(echo: Any) -> None:
    mailbox: Mailbox[Message] = Mailbox()
    mailbox.put("nonsense")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected 'nonsense'"):
        await run(echo, mailbox, print)
