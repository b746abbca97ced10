"""Who may use a server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rekindle.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Access:
    """The clients of a server.

    Attributes:
        api_keys: the keys of clients; empty serves clients without a key.
        admin_keys: the keys of administrators; empty refuses administration to all.
        origins: the origins of web pages with access from a browser (CORS); "*" for all.

    Raises:
        ConfigError: a key or an origin is empty or not a string.
    """

    api_keys: Sequence[str] = field(default=(), repr=False)
    admin_keys: Sequence[str] = field(default=(), repr=False)
    origins: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the types."""
        for name in ("api_keys", "admin_keys", "origins"):
            values = getattr(self, name)
            if isinstance(values, str):  # a key is no part of the message
                raise ConfigError(f"{name} must be a list of non-empty strings, got one string: put it in a list")
            for each in values:
                if not isinstance(each, str) or not each:
                    item = "an empty one" if each == "" else f"an item of type {type(each).__name__}"
                    raise ConfigError(f"{name} must be a list of non-empty strings, got {item}")
