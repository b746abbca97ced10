"""Settings of a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Final, TypedDict

from rekindle.core.errors import ConfigError
from rekindle.core.keywords import hinted, suggestion

MOST_SECONDS: Final = 24 * 60 * 60
LOCAL_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
"""Addresses reachable from this machine only."""


@hinted
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server: the keywords of `Session.serve` and `rekindle.serve`.

    Attributes:
        host: the address to listen on. The default accepts clients on this machine only; "0.0.0.0" accepts clients on
            every network of the machine, so set `api_keys` too.
        port: the port to listen on; 0 chooses a free one.
        api_keys: the accepted API keys; empty accepts clients without a key.
        admin_keys: the accepted keys for administration: pauses, and new weights and adapters from files of this
            machine. If empty, administration is refused.
        origins: the allowed origins of web pages, such as "https://example.org"; "*" allows all.
        grace: the longest wait of a closing server for requests in flight, in seconds. The others are cancelled.
        timeout_keep_alive: the time in seconds that a connection without a request stays open for the next one. It
            should exceed that of the clients' pools: aiohttp has 15 s, nginx 60 s, Go 90 s.
        ssl_certfile: the certificate for HTTPS, with its chain, in PEM format; None for HTTP.
        ssl_keyfile: the private key of the certificate, if it is not in the same file.
        strict: whether hints without effect on the model, such as `verbosity` or a variable unread by the chat
            template, are refused instead of ignored.
        keep_responses: whether the responses of /v1/responses are kept on disk beside the caches, up to 1 GiB, for
            conversations after a restart, instead of the latest 64 MiB in memory.

    Raises:
        ConfigError: `grace` or `timeout_keep_alive` is not a number of seconds up to a day.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Sequence[str] = field(default=(), repr=False)
    admin_keys: Sequence[str] = field(default=(), repr=False)
    origins: Sequence[str] = ()
    grace: float = 10.0
    timeout_keep_alive: float = 120.0
    ssl_certfile: str | PathLike[str] | None = None
    ssl_keyfile: str | PathLike[str] | None = None
    strict: bool = False
    keep_responses: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("grace", self.grace, float, MOST_SECONDS, "; it is in seconds")
        check_number("timeout_keep_alive", self.timeout_keep_alive, float, MOST_SECONDS, "; it is in seconds")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "ServerSettings":
        """Return the settings of keywords.

        Raises:
            ConfigError: a keyword is unknown, or its value is invalid.
        """
        for name in options:
            if name not in ServerOptions.__annotations__:
                hint = suggestion(name, ServerOptions.__annotations__)
                raise ConfigError(f"unknown setting of a server {name!r}; {hint}")
        return cls(**options)

    @property
    def local(self) -> bool:
        """True if the address is reachable from this machine only."""
        return self.host in LOCAL_HOSTS


class ServerOptions(TypedDict, total=False):
    """Keywords of `Session.serve` and `rekindle.serve`, as documented in `ServerSettings`."""

    host: str
    port: int
    api_keys: Sequence[str]
    admin_keys: Sequence[str]
    origins: Sequence[str]
    grace: float
    timeout_keep_alive: float
    ssl_certfile: str | PathLike[str] | None
    ssl_keyfile: str | PathLike[str] | None
    strict: bool
    keep_responses: bool


SERVER_DEFAULTS: Final = {each.name: each.default for each in fields(ServerSettings)}


def check_number(name: str, value: Any, kind: type[int | float], most: int, hint: str) -> None:
    """Raise ConfigError unless `value` is an integer or a number of type `kind`, from 0 to `most`."""
    if not isinstance(value, (int, kind)) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be from 0 to {most}, got {value!r:.80}{hint}")
