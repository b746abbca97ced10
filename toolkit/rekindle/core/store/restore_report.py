"""Report of the programs and pages restored by a session."""

from dataclasses import dataclass
from typing import Final

from rekindle.core import markup

MEANINGS: Final = {
    "code": "the sources of Rekindle",
    "statics": "compiled-in sizes",
    "arguments": "shapes of program arguments",
    "shardings": "shardings of program arguments",
    "model": "the model's config",
    "weights": "the weight files: names, sizes, modification times, samples of their content",
    "page": "dtype and shape of a page",
    "jax_config": "settings of JAX",
    "xla_flags": "XLA_FLAGS and LIBTPU_INIT_ARGS",
    "packages": "versions of JAX and the compiler packages",
    "host_cpu": "the target CPU",
    "native_kernels": "instruction set and library of the C++ kernels",
}
"""Explanations of key parts, for parts whose names are not clear enough."""

NO_VALUE: Final = "(nothing)"
"""Placeholder for an empty value."""
MAX_CHARACTERS = 80
"""Maximum length of a value in the text; `RestoreReport.differences` has up to 160 characters of it."""


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport:
    """The stored programs and pages found by a session, from `session.restored`.

    Attributes:
        stored: number of programs of this session in the executable store.
        programs: number of programs loaded from the store so far.
        compiled: number of programs that had to be compiled.
        nodes: number of cached pages found in the snapshot.
        tokens: number of tokens in the cached pages.
        seconds: time from the call of `open` until the session could serve requests.
        compile_seconds: total recorded compile time of the stored programs, in seconds. Several programs
            may have been compiled concurrently.
        differences: reasons for unused entries: each differing key part, with (its value here, its stored value).
        states: number of cached states found in the snapshot, for a model whose layers keep one.
        pending: number of programs still to be compiled, in quiet times.
    """

    stored: int
    programs: int
    compiled: int
    nodes: int
    tokens: int
    seconds: float
    compile_seconds: float
    differences: dict[str, tuple[str, str]]
    states: int = 0
    pending: int = 0

    def __repr__(self) -> str:
        return f"<rekindle restored: {'; '.join(self._counts())}>" + "".join(f"\n  {line}" for line in self._reasons())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(
            repr(self), markup.card("rekindle restored", "", markup.bullet_list(self._counts() + self._reasons()))
        )

    def _counts(self) -> list[str]:
        states = f" and {markup.quantity(self.states, 'state')}" if self.states else ""
        pending = f", {self.pending} still to compile" if self.pending else ""
        return [
            f"{self._programs()}, {self.compiled} compiled{pending}",
            f"{markup.quantity(self.nodes, 'cached page')} ({markup.quantity(self.tokens, 'token')}){states} found",
            f"open after {self.seconds:.2f} s",
            *([f"saved {markup.seconds(self.compile_seconds)} of compiling"] if self.compile_seconds else []),
        ]

    def _programs(self) -> str:
        if self.programs + self.compiled < self.stored:  # a damaged program is compiled again
            return f"{markup.quantity(self.stored, 'stored program')} ({self.programs} loaded until now)"
        return f"{markup.quantity(self.programs, 'program')} loaded"

    def _reasons(self) -> list[str]:
        return [
            f"stored entries differ in {difference_text(part, here, there)}"
            for part, (here, there) in self.differences.items()
        ]


def difference_text(part: str, here: str, there: str) -> str:
    """Format one differing part of a key: its label, the stored value, and the value in this process."""
    return f"{part_label(part)}: {_value_text(there)} there, {_value_text(here)} here"


def part_label(part: str) -> str:
    """Return the name of a key part, with its explanation if there is one."""
    return f"{part} ({MEANINGS[part]})" if part in MEANINGS else part


def _value_text(value: str) -> str:
    """Return a value as one printable line. Values come from files, so invisible characters are escaped."""
    return markup.one_line(markup.spelled(value), MAX_CHARACTERS) or NO_VALUE
