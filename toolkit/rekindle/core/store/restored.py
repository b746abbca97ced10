"""The report of what a session found of earlier ones."""

from dataclasses import dataclass
from typing import Final

from rekindle.core import markup

MEANT: Final = {
    "code": "the sources of Rekindle",
    "statics": "sizes that are compiled in",
    "arguments": "shapes of what programs take",
    "shardings": "places of what programs take",
    "model": "the model's config",
    "weights": "the weight files: names, sizes, times of change, samples of their content",
    "page": "dtype and shape of a page",
    "jax_config": "settings of JAX",
    "xla_flags": "XLA_FLAGS and LIBTPU_INIT_ARGS",
    "packages": "versions of what compiles",
    "host_cpu": "the CPU that is compiled for",
    "native_kernels": "instruction set and library of the C++ kernels",
}
"""The meanings of parts of keys whose names do not say them."""

NOTHING: Final = "(nothing)"
"""The word for the value of a part that is empty."""
LONGEST = 80
"""The most characters of a value that are shown; `Restored.differences` has more of it."""


@dataclass(frozen=True, slots=True, repr=False)
class Restored:
    """The stored programs and pages that a session found, from `session.restored`.

    Attributes:
        stored: compiled programs that were in the executable store, of those that the session prepares.
        programs: those that were loaded from there until now.
        compiled: programs that had to be compiled.
        nodes: cached pages of prefixes that were found in the snapshot.
        tokens: tokens in these pages.
        seconds: from the call of `open` until the session could serve.
        compile_seconds: what compiling the stored programs took when they were made, as far as they say; several may
            have been compiled at the same time.
        differences: why stored entries were not used: each part of a key that differs, with (its value here, there).
    """

    stored: int
    programs: int
    compiled: int
    nodes: int
    tokens: int
    seconds: float
    compile_seconds: float
    differences: dict[str, tuple[str, str]]

    def __repr__(self) -> str:
        return f"<rekindle restored: {'; '.join(self._counts())}>" + "".join(f"\n  {line}" for line in self._reasons())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(
            repr(self), markup.card("rekindle restored", "", markup.listed(self._counts() + self._reasons()))
        )

    def _counts(self) -> list[str]:
        return [
            f"{self._loaded()}, {self.compiled} compiled",
            f"{markup.counted(self.nodes, 'cached page')} ({markup.counted(self.tokens, 'token')}) found",
            f"open after {self.seconds:.2f} s",
            *([f"saved {markup.seconds(self.compile_seconds)} of compiling"] if self.compile_seconds else []),
        ]

    def _loaded(self) -> str:
        if self.programs + self.compiled < self.stored:  # one that is damaged is compiled again
            return f"{markup.counted(self.stored, 'stored program')} ({self.programs} loaded until now)"
        return f"{markup.counted(self.programs, 'program')} loaded"

    def _reasons(self) -> list[str]:
        return [
            f"what is stored differs in {difference_words(part, here, there)}"
            for part, (here, there) in self.differences.items()
        ]


def difference_words(part: str, here: str, there: str) -> str:
    """Say which part of a key differs, and how."""
    return f"{part_words(part)}: {_said(there)} there, {_said(here)} here"


def part_words(part: str) -> str:
    """Return the name of a part of a key, and its meaning."""
    return f"{part} ({MEANT[part]})" if part in MEANT else part


def _said(value: str) -> str:
    """Return a value on one line, with unseen characters spelled out, since it comes from a file."""
    return markup.one_line(markup.spelled(value), LONGEST) or NOTHING
