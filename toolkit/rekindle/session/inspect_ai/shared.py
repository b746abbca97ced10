"""Sessions shared by the models of inspect-ai in a process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rekindle.session.opening import open_sync
from rekindle.session.session import Session


@dataclass(eq=False, slots=True)
class SharedSession:
    """An open session with its users.

    Attributes:
        session: the session.
        model: the name of the model, or the path of its files.
        settings: the keywords of `open`, as given.
        users: the number of models of inspect-ai that use the session.
    """

    session: Session
    model: str
    settings: Mapping[str, Any]
    users: int = 0

    def leave(self) -> bool:
        """Take one user away, and return True if the session has to be closed, since it has no more users."""
        with _lock:
            self.users -= 1
            if self.users == 0 and self in _sessions:
                _sessions.remove(self)
            return self.users == 0


_sessions: list[SharedSession] = []
_lock = Lock()


def share(model: str, settings: Mapping[str, Any], *, progress: bool) -> SharedSession:
    """Return an open session of a model with one more user; open it if there is none.

    Without settings, any open session of the model will do. With settings, it must have been opened with the same ones.

    Args:
        model: the model, as in `rekindle.open`.
        settings: further keywords of `rekindle.open`.
        progress: whether to draw progress bars while opening.

    Raises:
        ConfigError: a keyword is unknown or invalid.
        ModelError: the model cannot be opened.
        Others: as in `rekindle.open`.
    """
    name = os.path.realpath(model) if os.path.exists(model) else model
    with _lock:  # for the whole opening, or two callers would open the same model
        _sessions[:] = [each for each in _sessions if each.session.error is None]
        for shared in _sessions:
            if shared.model == name and (not settings or shared.settings == settings):
                break
        else:
            options: dict[str, Any] = {"progress": progress, **settings}
            shared = SharedSession(open_sync(model, **options), name, dict(settings))
            _sessions.append(shared)
        shared.users += 1
        return shared
