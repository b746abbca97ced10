"""What a session found of earlier ones, as its user sees it."""

from dataclasses import dataclass

from rekindle import markup
from rekindle.key_words import NOTHING, part_words

LONGEST = 80
"""Characters of a value that is said; `Restored.differences` has more of it."""


@dataclass(frozen=True, slots=True, repr=False)
class Restored:
    """What was warm, from `session.restored`.

    Attributes:
        programs: compiled programs that were loaded from the executable store.
        compiled: programs that had to be compiled.
        nodes: cached pages of prefixes that were found in the snapshot.
        tokens: tokens in them.
        seconds: from the call of `open` until the session could serve.
        differences: why what is stored was not used: by the part of its key that differs, (its value here, there).
    """

    programs: int
    compiled: int
    nodes: int
    tokens: int
    seconds: float
    differences: dict[str, tuple[str, str]]

    def __repr__(self) -> str:
        return f"<rekindle restored: {'; '.join(self._counts())}>" + "".join(f"\n  {line}" for line in self._reasons())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(
            repr(self), markup.card("rekindle restored", "", markup.listed(self._counts() + self._reasons()))
        )

    def _counts(self) -> list[str]:
        return [
            f"{markup.counted(self.programs, 'program')} loaded, {self.compiled} compiled",
            f"{markup.counted(self.nodes, 'cached page')} ({markup.counted(self.tokens, 'token')}) found",
            f"open after {self.seconds:.2f} s",
        ]

    def _reasons(self) -> list[str]:
        return [
            f"what is stored differs in {difference_words(part, here, there)}"
            for part, (here, there) in self.differences.items()
        ]


def difference_words(part: str, here: str, there: str) -> str:
    """A part of a key that differs, and how."""
    return f"{part_words(part)}: {_said(there)} there, {_said(here)} here"


def _said(value: str) -> str:
    """A value as it is, on one line of what can be seen; it comes from a file."""
    return markup.one_line(markup.spelled(value), LONGEST) or NOTHING
