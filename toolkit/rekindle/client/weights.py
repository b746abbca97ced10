"""Weights in use by the engine, as known to its client."""

from rekindle.core.messages import WeightsUsed


class WeightsInUse:
    """The weights in use, and the digests of all weights so far.

    Args:
        present: whether the engine opens with weights.

    Attributes:
        version: the number of the weights in use; 0 for the initial ones.
        digests: the digests of the weights so far, by their numbers.
        present: whether the engine has had weights.
        asleep: whether the device has neither weights nor pages.
    """

    def __init__(self, *, present: bool):
        self.version = 0
        self.digests: dict[int, str] = {}
        self.present = present
        self.asleep = False

    @property
    def digest(self) -> str:
        """The digest of the weights in use; empty if it is unknown."""
        return self.digests.get(self.version, "")

    def take(self, message: WeightsUsed, digest: str) -> None:
        """Record a change of weights, or the begin of a sleep."""
        self.version, self.asleep = message.version, message.asleep
        if not message.asleep:
            self.present = True
            self.digests[message.version] = digest

    def replace(self, version: int, digest: str) -> bool:
        """Record a replacement by another session; return False for one known already."""
        if (version, digest) == (self.version, self.digest):
            return False
        self.version, self.digests[version] = version, digest
        return True
