"""Pausing an engine, and letting it take one message at a time."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from rekindle.concurrency.feed import Feed
from rekindle.concurrency.mailbox import Mailbox
from rekindle.engine.actor import Stage
from rekindle.engine.handled import Handled


@dataclass(frozen=True, slots=True)
class Command:
    """Something that a caller asks of the conductor.

    Attributes:
        answer: gets what came of it, if anything, and is closed then, or once the engine has stopped and its error is
            known.
    """

    answer: Feed[Handled] = field(default_factory=Feed)


class Pause(Command):
    """No actor is to take another message; answered once none is busy."""


class Step(Command):
    """The oldest message that waits is to be taken, by whoever it is for. Pauses first, if need be."""


class Resume(Command):
    """All actors are to go on by themselves."""


class Conductor:
    """Takes commands from any thread; runs in a task of its own beside the actors.

    Args:
        stages: all of the engine's.

    Attributes:
        paused: whether it was told something else than to resume, last.
    """

    def __init__(self, stages: Sequence[Stage]):
        self._stages = stages
        self._commands: Mailbox[Command] = Mailbox()
        self._doing: Command | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.paused = False

    def tell(self, command: Command) -> None:
        """Leave a command; never blocks."""
        with self._lock:
            self.paused = not isinstance(command, Resume)
            self._commands.put(command)
        if self._closed:  # it may have come too late for `close` to find it
            command.answer.close()

    def close(self) -> None:
        """The engine has stopped: nobody is left waiting."""
        self._closed = True
        if self._doing is not None:
            self._doing.answer.close()
        while (command := self._commands.take()) is not None:
            command.answer.close()

    async def run(self) -> None:
        """Do as told, for ever."""
        while True:
            self._doing = await self._commands.receive()
            await self._do(self._doing)
            self._doing.answer.close()
            self._doing = None

    async def _do(self, command: Command) -> None:
        match command:
            case Resume():
                for stage in self._stages:
                    stage.mailbox.resume()
            case Pause():
                await self._pause()
            case Step():
                await self._pause()
                waiting = [stage for stage in self._stages if stage.mailbox]
                if waiting and not command.answer.closed:  # else who asked has left
                    first = min(waiting, key=lambda stage: stage.mailbox.oldest)
                    command.answer.put(await first.step())

    async def _pause(self) -> None:
        for stage in self._stages:
            stage.mailbox.pause()
        for stage in self._stages:
            await stage.idle()
