"""The conductor: pauses an engine and steps it one message at a time."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from anyio.lowlevel import checkpoint

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.engine.actor import Stage
from rekindle.core.messages import Cancel, Stopped, Withdraw
from rekindle.core.messages.record import MessageRecord


@dataclass(frozen=True, slots=True)
class Command:
    """Base class of a caller's commands to the conductor.

    Attributes:
        answer: feed of the handled message, if any. It is closed once the command is done, or once the engine has
            stopped and its error is known.
    """

    answer: Feed[MessageRecord] = field(default_factory=Feed)


class Pause(Command):
    """Command to stop all actors from taking messages; it is done once no actor is busy."""


class TakeOne(Command):
    """Command to handle the oldest queued message. A running engine is paused first."""


class Resume(Command):
    """Command to let all actors take messages again."""


class AwaitReleases(Command):
    """Command without an effect; it is done once the requests ended before it hold no pages, or the engine pauses."""


class Conductor:
    """Pauses, steps and resumes the actors of an engine.

    Sessions submit commands through `EngineThread.command`, from any thread. The conductor executes them in a task of
    the `Engine`.

    Args:
        stages: all stages of the engine.

    Attributes:
        paused: True unless the last command was `Resume`, apart from `AwaitReleases`.
    """

    def __init__(self, stages: Sequence[Stage]):
        self._stages = stages
        self._commands: Mailbox[Command] = Mailbox()
        self._current: Command | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.paused = False

    def submit(self, command: Command) -> None:
        """Submit a command. Thread-safe; never blocks."""
        with self._lock:
            if not isinstance(command, AwaitReleases):
                self.paused = not isinstance(command, Resume)
            self._commands.put(command)
        if self._closed:  # `close` may not have found the command
            command.answer.close()

    def close(self) -> None:
        """Close all answers after the engine has stopped, so that no caller keeps waiting."""
        self._closed = True
        if self._current is not None:
            self._current.answer.close()
        while (command := self._commands.take()) is not None:
            command.answer.close()

    async def run(self) -> None:
        """Execute commands until cancelled."""
        while True:
            self._current = await self._commands.receive()
            await self._do(self._current)
            self._current.answer.close()
            self._current = None

    async def _do(self, command: Command) -> None:
        match command:
            case Resume():
                for stage in self._stages:
                    stage.mailbox.resume()
            case Pause():
                await self._pause()
            case AwaitReleases():
                while self._releases_pages and not self.paused and not command.answer.closed:
                    await checkpoint()
            case TakeOne():
                await self._pause()
                waiting = [stage for stage in self._stages if stage.mailbox]
                if waiting and not command.answer.closed:  # a closed answer: its caller has left
                    first = min(waiting, key=lambda stage: stage.mailbox.oldest)
                    command.answer.put(await first.step())

    @property
    def _releases_pages(self) -> bool:
        """True if a queued message ends a request whose caller may regard it as ended."""
        return any(
            isinstance(message, Cancel | Withdraw | Stopped)
            for stage in self._stages
            for message in stage.mailbox.items
        )

    async def _pause(self) -> None:
        for stage in self._stages:
            stage.mailbox.pause()
        for stage in self._stages:
            await stage.idle()
