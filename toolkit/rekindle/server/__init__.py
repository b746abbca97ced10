"""An OpenAI-compatible server over a session: `app(session)` for any ASGI server, and `session.serve()` with one."""

from rekindle.server.application import app
from rekindle.server.limits import Limits

__all__ = ["Limits", "app"]
