"""How the length of a request changes the positions of its tokens, in models whose ropes depend on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeLengthRule:
    """The rule of a model.

    Attributes:
        long_from: requests of more tokens have other positions than shorter ones; None if lengths change nothing.
        grows: whether positions are others for each length of a prompt above that. Then what follows the prompt has
            positions by its own place, and nothing is computed again.
    """

    long_from: int | None
    grows: bool

    def length(self, prompt: int, known: int) -> int:
        """Return the length by which the tokens of a request turn; 0 while it is short.

        Args:
            prompt: tokens of its prompt.
            known: all its tokens so far.
        """
        decisive = prompt if self.grows else known
        return decisive if self.long_from is not None and decisive > self.long_from else 0

    def namespace(self, salt: str, length: int) -> str:
        """Return the namespace of a salt's pages for a length, which no other salt and no other length has.

        A NUL of the salt is doubled, so that only the one before a length stands alone.
        """
        escaped = salt.replace("\0", "\0\0")
        if not length:
            return escaped
        return f"{escaped}\0{length if self.grows else 'long'}"

    def outgrown(self, computed: int) -> bool:
        """Tell whether one more token than those that are computed makes a short request a long one."""
        return not self.grows and computed == self.long_from
