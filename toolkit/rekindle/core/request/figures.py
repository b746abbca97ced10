"""Cached tokens of a request, by tier."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of a prompt found in the prefix cache, by tier."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Number of cached tokens in all tiers."""
        return self.device + self.host + self.disk

    def __str__(self) -> str:
        tiers = {"on the device": self.device, "in host memory": self.host, "on disk": self.disk}
        return ", ".join(f"{count:,} {where}" for where, count in tiers.items() if count) or "none"
