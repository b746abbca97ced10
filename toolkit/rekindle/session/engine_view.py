"""View of an engine for its dashboard."""

from itertools import islice

from rekindle.client.engine_client import OpenEngine
from rekindle.core.engine.conductor import Pause, Resume
from rekindle.core.errors import SessionClosed
from rekindle.notebook.board.board import BoardSource, Facts
from rekindle.notebook.board.rates import SECONDS

LISTED = 8
"""Maximum number of requests listed individually."""


class EngineView(BoardSource):
    """View of a session's engine. It does not keep the session alive."""

    def __init__(self, engine: OpenEngine, name: str):
        self._engine, self._name = engine, name
        self._restored = engine.facts.programs.restored().nodes

    def look(self, at: float) -> Facts:
        """See `BoardSource`."""
        requests, programs = self._engine.client.under_way, self._engine.facts.programs.readiness()
        first_tokens = tuple(self._engine.client.first_tokens)
        return Facts(
            name=self._name,
            dtype=self._dtype(),
            state=self._state(),
            has_ended=self._engine.thread.error is not None,
            stats=self._engine.facts.stats(),
            slots=self._engine.facts.limits.groups * self._engine.facts.limits.max_running,
            first_tokens=tuple(waited for when, waited in first_tokens if when >= at - SECONDS),
            ready_programs=programs.ready,
            total_programs=programs.total,
            restored_pages=self._restored,
            requests={request_id: handle.record.standing for request_id, handle in islice(requests.items(), LISTED)},
            more=max(0, len(requests) - LISTED),
        )

    def pause(self) -> None:
        """See `BoardSource`."""
        self._engine.thread.command(Pause())

    def resume(self) -> None:
        """See `BoardSource`."""
        self._engine.thread.command(Resume())

    def cancel(self, request_id: int) -> None:
        """See `BoardSource`."""
        handle = self._engine.client.under_way.get(request_id)
        if handle is not None:
            handle.cancel()

    def _dtype(self) -> str:
        """Return the dtype of computation, followed by the devices if there are several."""
        deployment = self._engine.facts.deployment
        several = deployment.devices > 1 or self._engine.facts.limits.lanes > 1
        return deployment.dtypes + (f" on {deployment}" if several else "")

    def _state(self) -> str:
        match self._engine.thread.error:
            case None:
                return self._engine.thread.stuck or ("paused" if self._engine.thread.paused else "running")
            case SessionClosed():
                return "closed"
            case error:
                return f"failed: {error}"
