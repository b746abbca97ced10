"""Addresses of processes, as "host:port"."""

from typing import Final, NamedTuple

from rekindle.core.errors import ConfigError

LISTEN: Final = "127.0.0.1:7468"
"""Default address of a leader, reachable from this machine only."""


class Address(NamedTuple):
    """A host's name or IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: object) -> "Address":
        """Return the address in a text.

        Raises:
            ConfigError: the text is not an address.
        """
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"an address is a host and a port, such as {LISTEN}; got {text!r:.80}")
        return cls(host, int(port))
