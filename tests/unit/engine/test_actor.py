"""Messages arrive in order, from any thread, and a sleeper is woken once, whatever loop it sleeps on."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from rekindle.core.concurrency import mailbox
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.mailbox import Mailbox, Waiter
from rekindle.core.engine.actor import Stage
from rekindle.core.messages import Cancel, Message, Withdraw
from rekindle.core.messages.record import MessageRecord

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


async def receive_one(mailbox: Mailbox[str], received: list[str]) -> None:
    received.append(await mailbox.receive())


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

    monkeypatch.setattr("rekindle.core.concurrency.mailbox.Waiter", racing)
    monkeypatch.setattr("rekindle.core.concurrency.feed.Waiter", racing)
    ended: list[str] = []

    async def read() -> None:
        await feed.wait(len(feed.items))
        ended.append("read")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive_one, mailbox, ended)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert ended == ["between", "read"]


async def test_others_get_a_turn_for_each_message_though_many_wait() -> None:
    mailbox: Mailbox[int] = Mailbox()
    received: list[int] = []
    turns = 0
    for number in range(10):
        mailbox.put(number)

    async def receive() -> None:
        for _ in range(10):
            received.append(await mailbox.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        while len(received) < 10:
            turns += 1
            await checkpoint()
    assert turns >= 10


async def test_several_receivers_each_get_messages_and_none_is_lost() -> None:
    mailbox: Mailbox[int] = Mailbox()
    received: list[int] = []

    async def receive() -> None:
        while True:
            received.append(await mailbox.receive())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        for number in range(5):
            mailbox.put(number)
        await to_thread.run_sync(mailbox.put, 5)
        await anyio.wait_all_tasks_blocked()
        assert sorted(received) == [*range(6)]
        mailbox.pause()
        mailbox.put(6)
        await anyio.wait_all_tasks_blocked()
        assert mailbox.items == (6,)
        mailbox.resume()
        await anyio.wait_all_tasks_blocked()
        assert received[-1] == 6
        tasks.cancel_scope.cancel()


async def test_a_receiver_that_was_cancelled_loses_no_message() -> None:
    mailbox: Mailbox[str] = Mailbox()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mailbox.receive)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    mailbox.put("late")
    assert await mailbox.receive() == "late"


async def test_what_waits_in_a_paused_mailbox_is_received_once_it_resumes_and_nothing_is_lost() -> None:
    mailbox: Mailbox[int] = Mailbox()
    received: list[int] = []

    async def receive() -> None:
        while True:
            received.append(await mailbox.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        mailbox.put(0)
        await anyio.wait_all_tasks_blocked()
        for first in (1, 4):  # each pause comes while the receiver waits
            mailbox.pause()
            mailbox.put(first)
            await to_thread.run_sync(mailbox.put, first + 1)
            await anyio.wait_all_tasks_blocked()
            assert (received, mailbox.items, len(mailbox)) == ([*range(first)], (first, first + 1), 2)
            mailbox.resume()
            mailbox.put(first + 2)
            await anyio.wait_all_tasks_blocked()
            assert received == [*range(first + 3)]
        mailbox.put(7)
        mailbox.pause()  # the receiver is awake already, and finds the pause when it looks
        await anyio.wait_all_tasks_blocked()
        assert mailbox.items == (7,)
        await to_thread.run_sync(mailbox.resume)
        await anyio.wait_all_tasks_blocked()
        assert received == [*range(8)]
        tasks.cancel_scope.cancel()


async def test_a_message_that_is_taken_does_not_reach_the_receiver() -> None:
    mailbox: Mailbox[str] = Mailbox()
    assert mailbox.take() is None
    received: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive_one, mailbox, received)
        await anyio.wait_all_tasks_blocked()
        mailbox.pause()
        for word in ("first", "second"):
            mailbox.put(word)
        assert mailbox.take() == "first"
        mailbox.resume()
        await anyio.wait_all_tasks_blocked()
        assert received == ["second"]
        assert mailbox.take() is None


async def test_one_who_was_woken_waits_on_if_its_message_was_taken_from_under_it() -> None:
    mailbox: Mailbox[str] = Mailbox()
    received: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive_one, mailbox, received)
        await anyio.wait_all_tasks_blocked()
        mailbox.put("taken")
        assert mailbox.take() == "taken"
        await anyio.wait_all_tasks_blocked()
        assert received == []
        mailbox.put("received")
    assert received == ["received"]


def test_the_oldest_of_several_mailboxes_is_the_one_whose_first_item_was_put_first() -> None:
    mailboxes: list[Mailbox[int]] = [Mailbox() for _ in range(3)]
    order = [2, 0, 0, 1, 2, 1, 0, 2, 2, 1]
    for number, place in enumerate(order):
        mailboxes[place].put(number)
    numbers = []
    while waiting := [mailbox for mailbox in mailboxes if mailbox]:
        numbers.append(min(waiting, key=lambda mailbox: mailbox.oldest).take())
        if numbers[-1] == 4:
            mailboxes[2].put(len(order))  # a later message is younger than all that wait
    assert numbers == [*range(len(order) + 1)]


def test_any_thread_may_look_into_a_mailbox_while_others_put_and_take() -> None:
    mailbox: Mailbox[int] = Mailbox()
    over = threading.Event()

    def put_and_take() -> None:
        for number in range(20_000):
            mailbox.put(number)
            if number % 3:
                mailbox.take()
        over.set()

    threading.Thread(target=put_and_take, daemon=True).start()
    looks = 0
    while not over.is_set() or not looks:
        items = mailbox.items
        assert list(items) == sorted(items)
        looks += 1
    assert len(mailbox) == len(mailbox.items) == 6667


async def test_at_most_one_call_reaches_the_loop_of_a_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter()
    calls: list[object] = []
    call_soon = waiter._call_soon

    def record_call(call: Callable[[], object]) -> object:
        calls.append(call)
        return call_soon(call)

    monkeypatch.setattr(waiter, "_call_soon", record_call)

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
    """Check this under asyncio alone, because trio sees a signal by itself."""
    beats: list[asyncio.TimerHandle] = []
    beat = mailbox._Pulses._beat

    def record_beat(pulses: mailbox._Pulses) -> None:
        beat(pulses)
        beats.append(pulses._timer)
        if len(beats) == 3:
            waiter.wake()

    monkeypatch.setattr(mailbox, "PULSE_SECONDS", 0.001)
    monkeypatch.setattr(mailbox._Pulses, "_beat", record_beat)
    waiter = Waiter()
    if anyio_backend_name == "trio":
        waiter.wake()
    await waiter.wait(pulse=True)
    assert len(beats) == (3 if anyio_backend_name == "asyncio" else 0)
    assert all(timer.cancelled() for timer in beats[-1:]), "a wait that is over leaves no timer behind"
    count = len(beats)
    waiter = Waiter()
    waiter.wake()
    await waiter.wait(pulse=False)
    assert len(beats) == count


class Echo:
    """An actor that answers a Cancel with two messages, a Withdraw with none, and anything else with an error."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def handle(self, message: Message) -> Iterator[Message]:
        self.messages.append(message)
        match message:
            case Cancel(number):
                yield Withdraw(number)
                yield Withdraw(-number)
            case Withdraw():
                pass
            case _:
                raise TypeError(f"unexpected {message!r}")


class SlowEcho(Echo):
    """An actor like `Echo` with awaitable answers."""

    def handle(self, message: Message) -> Awaitable[list[Message]]:  # type: ignore[override]
        async def answer() -> list[Message]:
            await checkpoint()
            return list(Echo.handle(self, message))

        return answer()


@pytest.mark.parametrize("echo", [Echo(), SlowEcho()], ids=["synchronous", "awaitable"])
async def test_an_actor_takes_one_message_after_the_other_and_its_answers_are_sent_on(echo: Any) -> None:
    answers: list[Message] = []
    records: list[MessageRecord] = []
    stage = Stage("echo", echo, answers.append, lambda message: None, records.append)
    messages: list[Message] = [Cancel(1), Withdraw(5), Cancel(2)]
    echo.messages.clear()  # the same object serves both backends
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.run)
        for message in messages:
            stage.mailbox.put(message)
        await anyio.wait_all_tasks_blocked()
        assert echo.messages == messages
        assert answers == [Withdraw(1), Withdraw(-1), Withdraw(2), Withdraw(-2)]
        assert [each.message for each in records] == messages
        tasks.cancel_scope.cancel()


class Several:
    """An actor of two messages at a time; each answer waits for its release."""

    at_once = 2

    def __init__(self) -> None:
        self.releases: dict[int, anyio.Event] = {}

    async def handle(self, message: Message) -> list[Message]:
        (number,) = message.requests
        self.releases[number] = anyio.Event()
        await self.releases[number].wait()
        return [Withdraw(number)]


async def test_an_actor_takes_as_many_messages_at_once_as_it_says_and_is_idle_when_all_are_done() -> None:
    answers: list[Message] = []
    actor = Several()
    stage = Stage("several", actor, answers.append, lambda message: None, lambda record: None)
    async with anyio.create_task_group() as tasks:
        for _ in range(stage.at_once):
            tasks.start_soon(stage.run)
        for number in range(4):
            stage.mailbox.put(Cancel(number))
        await anyio.wait_all_tasks_blocked()
        assert [*actor.releases] == [0, 1]
        actor.releases[1].set()
        await anyio.wait_all_tasks_blocked()
        assert ([*actor.releases], answers) == ([0, 1, 2], [Withdraw(1)])
        stage.mailbox.pause()
        idle = anyio.Event()

        async def wait() -> None:
            await stage.idle()
            idle.set()

        tasks.start_soon(wait)
        actor.releases[0].set()
        await anyio.wait_all_tasks_blocked()
        assert not idle.is_set(), "one of the two is not done"
        actor.releases[2].set()
        await anyio.wait_all_tasks_blocked()
        assert idle.is_set()
        assert stage.mailbox.items == (Cancel(3),)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("echo", [Echo(), SlowEcho()], ids=["synchronous", "awaitable"])
async def test_an_error_in_an_actor_comes_out_of_its_loop(echo: Any) -> None:
    stage = Stage("echo", echo, print, print, print)
    stage.mailbox.put("nonsense")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected 'nonsense'"):
        await stage.run()
