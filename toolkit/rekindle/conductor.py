"""Pausing an engine, and letting it take one message at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rekindle.actor import Mailbox
from rekindle.feed import Feed
from rekindle.handled import Handled
from rekindle.stage import Stage


@dataclass(frozen=True, slots=True)
class Command:
    """Something that a caller asks of the conductor.

    Attributes:
        answer: gets what came of it, if anything, and is closed then, or when the engine has stopped.
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
        paused: whether no actor takes messages by itself.
    """

    def __init__(self, stages: Sequence[Stage]):
        self._stages = stages
        self._commands: Mailbox[Command] = Mailbox()
        self._closed = False
        self.paused = False

    def tell(self, command: Command) -> None:
        """Leave a command; never blocks."""
        self._commands.put(command)
        if self._closed:  # it may have come too late for `close` to find it
            command.answer.close()

    def close(self) -> None:
        """The engine has stopped: nobody is left waiting."""
        self._closed = True
        while (command := self._commands.take()) is not None:
            command.answer.close()

    async def run(self) -> None:
        """Do as told, for ever."""
        while True:
            command = await self._commands.receive()
            try:
                await self._do(command)
            finally:
                command.answer.close()

    async def _do(self, command: Command) -> None:
        match command:
            case Resume():
                self.paused = False
                for stage in self._stages:
                    stage.mailbox.release()
            case Pause():
                await self._pause()
            case Step():
                await self._pause()
                waiting = [stage for stage in self._stages if stage.mailbox]
                if waiting:
                    first = min(waiting, key=lambda stage: stage.mailbox.oldest)
                    command.answer.put(await first.step())

    async def _pause(self) -> None:
        self.paused = True
        for stage in self._stages:
            stage.mailbox.hold()
        for stage in self._stages:
            await stage.idle()
