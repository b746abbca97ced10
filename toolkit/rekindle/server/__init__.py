"""A server with the APIs of OpenAI, Anthropic and Ollama.

`app(session)` is for any ASGI server; `session.serve()`, and `rekindle.serve` for several models, bring their own.
"""

from rekindle.server.application import app
from rekindle.server.http.limits import Limits

__all__ = ["Limits", "app"]
