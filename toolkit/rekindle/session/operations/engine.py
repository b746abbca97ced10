"""Operations on a session: replace weights, save the cache, wait for programs, pause, step and close."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_args

from rekindle.assembly.replicas import ReadWeights
from rekindle.client.engine_client import OpenEngine
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.threads import EXIT_SECONDS, compiling, ending
from rekindle.core.concurrency.waits import Wait, Waits, in_a_thread, unless
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.programs.readiness import progress_feed, raise_first
from rekindle.core.engine.conductor import Command, Pause, TakeOne
from rekindle.core.errors import InvalidRequest, SessionError, StorageError
from rekindle.core.messages import CacheSaved, CacheSaving, InFlightPolicy, KeepWeights, NewWeights, SaveCache
from rekindle.core.messages.record import MessageRecord
from rekindle.formats.checkpoints.weights import Weights
from rekindle.formats.weight_file import check_unchanged
from rekindle.notebook.progress.bars import ProgressBars, draw_reports

T = TypeVar("T")

CLOSE_SECONDS = 3.0
"""Longest time for the writing of cached pages by a closing session, in seconds."""
STUCK_SECONDS = 3.0
"""Longest wait of a closing session for a tick that is stuck already, in seconds; `EXIT_SECONDS` for other calls."""
LOOK_SECONDS = 0.25
"""Interval between two checks of a closing session on its engine."""


class Operations:
    """Operations of one session, each awaitable or blocking; see `rekindle.core.concurrency.waits`."""

    def __init__(self, engine: OpenEngine):
        self._engine = engine
        self._followers: dict[Feed[None], Callable[[], None]] = {}
        self._source: Weights | None = None  # of the weights in use; None for those of the opened model
        self._stamps = engine.facts.checkpoint.stamps
        self._is_source_kept = engine.client.weights.present
        engine.thread.stopped.when_closed(self._stop_followers)

    def followed_by(self, stop: Callable[[], None], closed: Feed[None]) -> None:
        """Register a follower, for example a server. It is stopped after the engine, and `close` waits for its end.

        Args:
            stop: requests the end of the follower and returns at once; thread-safe and idempotent.
            closed: a feed that closes when the follower has ended.
        """
        self._followers[closed] = stop
        closed.when_closed(lambda: self._forget(closed))
        if self._engine.thread.stopped.closed:
            stop()

    def update_weights(self, weights: Weights, in_flight: InFlightPolicy, shares: bool = False) -> Waits[None]:
        """See `Session.update_weights`."""
        return self._unless_stuck(self._update_weights(weights, in_flight, shares))

    def _update_weights(self, weights: Weights, in_flight: InFlightPolicy, shares: bool) -> Waits[None]:
        self._check_in_flight(in_flight)
        load = self._engine.facts.reload if self._engine.client.weights.asleep else self._engine.facts.load
        new = yield from in_a_thread(lambda: load(weights, shares=shares), "weights")
        yield from self._exchange(lambda ticket: NewWeights(ticket, new.payload, in_flight), new.digest)
        self._is_source_kept = not isinstance(weights, Mapping)  # arrays would take the memory that sleep() frees
        self._source = None if isinstance(weights, Mapping) else weights
        self._stamps = new.stamps

    def sleep(self, in_flight: InFlightPolicy) -> Waits[None]:
        """See `Session.sleep`."""
        self._check_in_flight(in_flight)
        if self._engine.facts.replicas is not None or self._engine.facts.followers is not None:
            raise InvalidRequest("sleep() frees the devices of this process, and this session has devices of others")
        lanes: list[list[Any]] = [[] for _ in self._engine.facts.lanes]
        empty = lanes if len(lanes) > 1 else lanes[0]
        yield from self._unless_stuck(self._exchange(lambda ticket: NewWeights(ticket, empty, in_flight, asleep=True)))

    def wake(self, weights: Weights | None) -> Waits[None]:
        """See `Session.wake`."""
        if weights is not None:
            yield from self.update_weights(weights, "finish")
            return
        if not self._engine.client.weights.asleep:
            return
        if not self._is_source_kept:
            raise InvalidRequest(
                "wake() reads the weights again from files, and the last ones came as arrays, which are not kept, or "
                "there were none: pass them, wake(weights)"
            )
        new = yield from in_a_thread(self._reload, "weights")
        version = self._engine.client.weights.version
        exchange = self._exchange(lambda ticket: NewWeights(ticket, new.payload, version=version), new.digest)
        yield from self._unless_stuck(exchange)

    def _reload(self) -> ReadWeights:
        """Read the weights in use before the sleep.

        Raises:
            CheckpointError: the files have changed since.
            Others: as `LoadedEngine.reload`.
        """
        remedy = (
            "wake() brings the same weights back. To use the files as they are now, pass them, wake(weights): they are "
            "new weights, with a new version and an empty cache"
        )
        check_unchanged(self._stamps, remedy)
        new = self._engine.facts.reload(self._source)
        check_unchanged(self._stamps, remedy)
        return new

    def _check_in_flight(self, in_flight: InFlightPolicy) -> None:
        if in_flight not in get_args(InFlightPolicy):
            raise InvalidRequest(f"in_flight must be 'finish', 'keep' or 'fail', got {in_flight!r}")
        if in_flight == "keep" and self._engine.facts.limits.one_shape:
            raise InvalidRequest(
                "in_flight='keep' computes generated tokens again with another program, and deterministic=True rules "
                "that out on these devices: use 'finish' or 'fail'"
            )

    def _exchange(self, question: Callable[[int], NewWeights], digest: str = "") -> Waits[None]:
        """Ask for weights with a digest or for none, and wait until all lanes agree; withdraw if it is left early."""
        ticket, used = self._engine.ask(question, digest)
        try:
            yield Wait(used)
        except BaseException:
            with suppress(SessionError):  # if the engine has ended too, the first error is raised
                self._engine.thread.post(KeepWeights(ticket))
            raise
        self._engine.check()

    def save(self, progress: bool) -> Waits[int]:
        """See `Session.save`."""
        if not self._engine.facts.limits.pool.snapshots:
            raise StorageError(
                'this session writes no prefixes to disk; open one with restore="auto" or "require", '
                "prefix_cache=True, disk_cache_bytes above 0, and host_cache_bytes of at least one page, which is "
                f"{self._engine.facts.limits.pool.page_bytes:,} bytes here"
            )
        return (yield from self._unless_stuck(self._save(progress)))

    def _save(self, progress: bool) -> Waits[int]:
        _, saving = self._engine.ask(SaveCache)
        position = 0
        with ProgressBars(progress) as bars:
            while not saving.closed or position < len(saving.items):
                yield Wait(saving, position)
                for report in saving.items[position:]:
                    position += 1
                    if isinstance(report, CacheSaving) or report.complete:
                        total = report.total if isinstance(report, CacheSaving) else report.pages
                        bars.show(Progress("saving cached pages", report.pages, total, "pages"))
        return self._pages_saved(saving)

    def _pages_saved(self, saving: Feed[CacheSaving | CacheSaved]) -> int:
        answer = saving.items[-1] if saving.items else None
        if not isinstance(answer, CacheSaved):
            assert self._engine.thread.error is not None, "a running engine answers"
            raise self._engine.thread.error.with_traceback(None)
        if not answer.complete:
            advice = "a warning says why; without one, raise host_cache_bytes. After update_weights no page is written"
            if ending():  # no warning reports this case
                advice = "the process is ending; save before its main thread is done"
            raise StorageError(f"{answer.pages} pages were written, and others could not be: {advice}")
        if answer.crowded_out:
            warn(
                f"{answer.pages} pages were written, and not all of the cached pages stay on disk: disk_cache_bytes, "
                f"{self._engine.facts.settings.disk_cache_bytes:,} bytes, has room for the latest only. To keep more, "
                "open the session with a larger disk_cache_bytes"
            )
        return answer.pages

    def precompiled(self, progress: bool) -> Waits[None]:
        """See `Session.precompiled`."""
        with ProgressBars(progress) as bars:
            yield from draw_reports(
                progress_feed(self._engine.facts.programs.preparing, self._engine.facts.programs.stored()), bars
            )
        raise_first(self._engine.facts.programs.preparing)

    def pause(self) -> Waits[None]:
        """See `Session.pause`."""
        yield from self._unless_stuck(self._command(Pause()))

    def step(self) -> Waits[MessageRecord | None]:
        """See `Session.step`."""
        return self._unless_stuck(self._command(TakeOne()))

    def _command(self, command: Command) -> Waits[MessageRecord | None]:
        """Send the conductor a command; return the record of a stepped message, if there is one."""
        self._engine.thread.command(command)
        try:
            yield Wait(command.answer)
        except BaseException:
            command.answer.close()  # withdraws a step that has not begun
            raise
        if command.answer.items:
            return command.answer.items[0]
        self._engine.check()
        return None

    def close(self) -> Waits[None]:
        """See `Session.close`."""
        thread = self._engine.thread
        try:
            saves = thread.error is None and thread.overdue is None and not thread.paused
            if saves and self._engine.facts.limits.pool.snapshots:
                with suppress(SessionError):
                    yield Wait(self._engine.ask(SaveCache)[1], timeout=CLOSE_SECONDS)
        finally:  # even if a cancelled scope prevents the wait
            thread.stop()
        if not thread.elsewhere:
            yield from self._stopped()
            for closed in tuple(self._followers):
                yield Wait(closed)

    def _stopped(self) -> Waits[None]:
        """Wait until the engine has stopped, or leave it behind if its device hangs. Compilations are waited for."""
        thread = self._engine.thread
        stopped, remaining = thread.stopped, STUCK_SECONDS if thread.overdue else EXIT_SECONDS
        while not stopped.closed and remaining > 0:
            yield Wait(stopped, timeout=LOOK_SECONDS)
            remaining -= 0 if compiling else LOOK_SECONDS
        if not stopped.closed:
            obstacle = thread.abandon()
            warn(
                f"the session is closed, but its engine has not stopped: it is {obstacle}. Its device memory is freed "
                "as soon as this call of the device ends; if it never does, restart the kernel, or end the process"
            )

    def _unless_stuck(self, waits: Waits[T]) -> Waits[T]:
        """Run an operation; raise StepTimeout in it once a tick is stuck, since the engine may never answer."""
        return unless(waits, lambda: self._engine.thread.overdue)

    def _stop_followers(self) -> None:
        for stop in tuple(self._followers.values()):
            stop()

    def _forget(self, closed: Feed[None]) -> None:
        self._followers.pop(closed, None)
