"""The daemon thread of one engine: it loads the engine, then serves until stopped."""

import asyncio
import os
import threading
from collections.abc import Callable

import anyio

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.core.concurrency.collector import OLD_OBJECTS
from rekindle.core.concurrency.feed import TO_THE_END, Feed
from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.threads import Work
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.engine.conductor import AwaitReleases, Command
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.wiring import Deliver
from rekindle.core.errors import EngineFailed, SessionClosed, StepTimeout
from rekindle.core.messages import Message
from rekindle.core.messages.record import Observer, Pending
from rekindle.core.tracebacks import release_variables

RELEASE_SECONDS = 0.5
"""Longest wait for the release of pages by ended requests; it takes milliseconds unless the loop is blocked."""
Build = Callable[[Report], LoadedEngine]


class Ending:
    """The end of one engine, as told to all callers: stopped, failed, or out of reach.

    Args:
        tell: called with the error for all waiting callers.
    """

    def __init__(self, tell: Callable[[Exception], None]):
        self._tell, self._lock, self._process = tell, threading.Lock(), os.getpid()
        self._error: Exception | None = None

    @property
    def elsewhere(self) -> bool:
        """True in a process forked from the engine's process. The engine is out of reach there."""
        return os.getpid() != self._process

    @property
    def error(self) -> Exception | None:
        """The reason for the end of the engine; None while it serves."""
        if self._error is None and self.elsewhere:
            return SessionClosed(
                f"the engine is in process {self._process}, which this one was forked from: open a session here, or "
                'start processes with multiprocessing\'s "spawn"'
            )
        return self._error

    def come(self, error: Exception) -> None:
        """Fail all callers; the first error is final."""
        with self._lock:
            self._error = self._error or error
        self._tell(self._error)


class EngineThread:
    """The daemon thread of one engine: builds the engine, serves until stopped, and frees the device memory.

    A session, or a replica, creates it, and posts messages and commands to the engine through it, from any thread. The
    thread starts at once, with the creating thread's JAX settings apart from Rekindle's own; see `JaxSettings`. The end
    of the process stops and joins it; see `rekindle.core.concurrency.threads`.

    Args:
        build: loads the engine, on the engine's thread.
        deliver: function for messages to callers, on the engine's thread.
        ended: called once after the engine has stopped for any reason, with the error for all waiting callers.

    Attributes:
        opening: progress of building; closed when the engine serves or has failed.
        stopped: closed when the device memory is freed, or by `abandon`.
        loaded_engine: the loaded engine; None until built.
    """

    def __init__(self, build: Build, deliver: Deliver, ended: Callable[[Exception], None]):
        self.opening: Feed[Progress] = Feed()
        self.stopped: Feed[None] = Feed()
        self.loaded_engine: LoadedEngine | None = None
        self._engine: Engine | None = None
        self._build, self._deliver, self._ending = build, deliver, Ending(ended)
        self._jax_settings = JaxSettings.here()
        self._stop: Mailbox[None] = Mailbox()
        self._workers: list[threading.Thread] = []
        self._thread = Work(self._main, "engine", self.stop)

    def post(self, message: Message) -> None:
        """Send a message to the engine.

        Raises:
            SessionClosed: the engine has been stopped.
            EngineFailed: the engine has failed.
        """
        self._serving().post(message)

    def command(self, command: Command) -> None:
        """Send a command to the engine's conductor; raises as `post` does."""
        self._serving().conductor.submit(command)

    def await_releases(self) -> None:
        """Wait until the requests ended before this call hold no pages; not on the engine's thread, nor while paused.

        The caller of a request hears of its end, and may have released a prefix, before the scheduler.
        """
        if self._engine is None or self.error or self.paused or threading.current_thread() is self._thread:
            return
        command = AwaitReleases()
        self._engine.conductor.submit(command)
        if not command.answer.wait_blocking(TO_THE_END, RELEASE_SECONDS):
            command.answer.close()

    def watch(self, observe: Observer) -> None:
        """Call `observe` with every message from now on; raises as `post` does."""
        self._serving().watch(observe)

    def unwatch(self, observe: Observer) -> None:
        """Stop calling `observe`."""
        if self._engine is not None:
            self._engine.unwatch(observe)

    @property
    def error(self) -> Exception | None:
        """The reason for the end of the engine; None while it serves."""
        return self._ending.error

    @property
    def elsewhere(self) -> bool:
        """True in a process forked from the engine's process; see `Ending`."""
        return self._ending.elsewhere

    @property
    def paused(self) -> bool:
        """True if the engine serves and is paused."""
        return self.error is None and self._engine is not None and self._engine.conductor.paused

    @property
    def stuck(self) -> str | None:
        """The engine's stuck tick, as text; None if no tick is stuck."""
        if self.error is not None or self._engine is None or self.loaded_engine is None:
            return None
        replicas = self.loaded_engine.replicas
        return self._engine.stuck or (None if replicas is None else replicas.stuck)

    @property
    def overdue(self) -> StepTimeout | None:
        """The error for callers whose answers wait for a stuck tick; None if no tick is stuck."""
        if (stuck := self.stuck) is None or self._engine is None:
            return None
        return self._engine.overdue or StepTimeout(
            f"a replica is {stuck}. It serves on as soon as the tick ends; if it never does, stop the replica"
        )

    @property
    def pending(self) -> Pending:
        """Queued messages, as `Engine.pending`; raises as `post` does."""
        return self._serving().pending

    def stop(self) -> None:
        """Ask the engine to stop. Returns at once; thread-safe, and may be called repeatedly."""
        self._stop.put(None)

    def abandon(self) -> str:
        """Let all callers go although the engine has not stopped, and return a description of the obstacle.

        The thread goes on, and frees the device memory if its current call ever returns.
        """
        obstacle = self.stuck or "in a call that does not return"
        self._end(SessionClosed(f"the session is closed, and its engine was left behind, {obstacle}"))
        self.stopped.close()
        return obstacle

    def _end(self, error: Exception) -> None:
        """Fail all callers, and those of the conductor."""
        self._ending.come(error)
        if self._engine is not None:
            self._engine.conductor.close()

    def _serving(self) -> Engine:
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self._engine is not None, "a session exists only once its engine serves"
        return self._engine

    def _main(self) -> None:
        try:
            with self._jax_settings.apply():
                self.loaded_engine = self._build(self._report)
                self._engine = self.loaded_engine.engine(self._deliver)
                with OLD_OBJECTS.left_out(self._engine.is_busy):
                    anyio.run(self._serve)
            reason: Exception = SessionClosed(
                "the session is closed, by close() or because nothing held it any more; open another with "
                "rekindle.open()"
            )
        except BaseException as error:
            reason = self._final_error(error)
        self._end(reason)
        try:
            if self.loaded_engine is not None:
                self.loaded_engine.free()
        finally:  # freeing may fail on a failed device, and callers must not keep waiting
            self.opening.close()
            self.stopped.close()
        for worker in self._workers:  # at the end of the process, only this thread waits for them
            worker.join()

    async def _serve(self) -> None:
        assert self._engine is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._engine.run)
                if self.loaded_engine is not None and self.loaded_engine.followers is not None:
                    tasks.start_soon(self.loaded_engine.followers.watch)
                if self.loaded_engine is not None and self.loaded_engine.replicas is not None:
                    tasks.start_soon(self.loaded_engine.replicas.listen, self._engine.post)
                self.opening.close()
                await self._stop.receive()
                tasks.cancel_scope.cancel()
        finally:  # an abandoned worker thread of anyio may still be within XLA
            mine, threads = asyncio.current_task(), threading.enumerate()
            self._workers = [thread for thread in threads if getattr(thread, "root_task", None) is mine]

    def _report(self, progress: Progress) -> None:
        if self._stop:
            raise SessionClosed("the session was closed while it was being opened")
        self.opening.put(progress)

    def _final_error(self, error: BaseException) -> Exception:
        """Return an error of building unchanged, and wrap an error of a serving engine in EngineFailed."""
        if self._engine is None and isinstance(error, Exception):
            release_variables(error)
            return error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if self.loaded_engine is not None and self.loaded_engine.followers is not None:
            error = self.loaded_engine.followers.reason(error)
        if isinstance(error, EngineFailed):
            return error
        failed = EngineFailed(f"the engine stopped because of {type(error).__name__}: {error}. Open another session")
        failed.__cause__ = error
        return failed
