"""Choice of the rope by a request's length, in models with a long-context rope."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeLengthRule:
    """A model's rule for the rope of a request: short up to a length, long beyond it.

    Attributes:
        long_from: the longest request with the short rope, in tokens; None if positions do not depend on the length.
        grows: whether the rope of a longer request depends on the exact length of its prompt. If so, generated tokens
            do not change it, and no token is recomputed.
    """

    long_from: int | None
    grows: bool

    def length(self, prompt: int, tokens: int) -> int:
        """Return the length for the rope of a request; 0 while it is short.

        Args:
            prompt: the number of tokens of its prompt.
            tokens: the number of all its tokens so far.
        """
        decisive = prompt if self.grows else tokens
        return decisive if self.long_from is not None and decisive > self.long_from else 0

    def namespace(self, salt: str, length: int) -> str:
        """Return the cache namespace for a salt and a rope length, unique to the pair.

        A NUL in the salt is doubled, so that only the one before a length stands alone.
        """
        escaped = salt.replace("\0", "\0\0")
        if not length:
            return escaped
        return f"{escaped}\0{length if self.grows else 'long'}"

    def outgrown(self, computed: int) -> bool:
        """Return True if one more token than `computed` turns a short request into a long one."""
        return not self.grows and computed == self.long_from
