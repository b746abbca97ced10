"""An engine as its dashboard sees it."""

from itertools import islice

from rekindle.engine.conductor import Pause, Resume
from rekindle.engine.host import Host
from rekindle.engine.machine import Machine
from rekindle.errors import SessionClosed
from rekindle.notebook.board import Facts, Source
from rekindle.notebook.rates import SECONDS
from rekindle.session.callers import Callers

LISTED = 8
"""Requests that are shown one by one."""


class EngineView(Source):
    """It does not hold the session, which may be dropped while it is looked at.

    Args:
        host, machine, callers: what serves the session.
        name: the model as its user calls it.
    """

    def __init__(self, host: Host, machine: Machine, callers: Callers, name: str):
        self._host, self._machine, self._callers, self._name = host, machine, callers, name
        self._restored = machine.restored().nodes

    def look(self, at: float) -> Facts:
        requests, preparing = self._callers.under_way, self._machine.preparing
        ended = tuple(self._callers.ended)
        return Facts(
            name=self._name,
            dtype=self._machine.dtype,
            state=self._state(),
            ended=self._host.error is not None,
            stats=self._machine.stats(),
            slots=self._machine.limits.max_running,
            first_tokens=tuple(timings.first_token for when, timings in ended if when >= at - SECONDS),
            ready=sum(program.done() and not program.cancelled() and not program.exception() for program in preparing),
            wanted=len(preparing),
            restored=self._restored,
            requests={request_id: handle.standing for request_id, handle in islice(requests.items(), LISTED)},
            more=max(0, len(requests) - LISTED),
        )

    def pause(self) -> None:
        self._host.command(Pause())

    def resume(self) -> None:
        self._host.command(Resume())

    def cancel(self, request_id: int) -> None:
        handle = self._callers.under_way.get(request_id)
        if handle is not None:
            handle.cancel()

    def _state(self) -> str:
        match self._host.error:
            case None:
                return "paused" if self._host.paused else "running"
            case SessionClosed():
                return "closed"
            case error:
                return f"failed: {error}"
