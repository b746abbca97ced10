"""What a session found of earlier ones, as its user sees it."""

from dataclasses import dataclass

from rekindle import markup


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
        return f"<rekindle restored: {'; '.join(self._lines())}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(repr(self), markup.card("rekindle restored", "", markup.listed(self._lines())))

    def _lines(self) -> list[str]:
        lines = [
            f"{_counted(self.programs, 'program')} loaded, {self.compiled} compiled",
            f"{_counted(self.nodes, 'cached page')} ({_counted(self.tokens, 'token')}) found",
            f"open after {self.seconds:.2f} s",
        ]
        for part, (here, there) in self.differences.items():
            lines.append(f"what is stored differs in {part}: {there!r} there, {here!r} here")
        return lines


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
