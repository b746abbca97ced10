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
PLAIN_NUMBERS: Final = "weights as plain numbers"
"""The numerics of a session without packed weights."""
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
        to_compile: number of programs being compiled in the background, or waiting for it.
        cold_seconds: time of `open` when none of these programs was stored, as measured then; None if it is unknown, or
            for a cold start itself.
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
    to_compile: int = 0
    cold_seconds: float | None = None

    def __repr__(self) -> str:
        return "\n  ".join((f"<rekindle restored: {'; '.join(self._counts())}>", *self.reasons()))

    def __str__(self) -> str:
        return "\n  ".join((f"restored: {'; '.join(self._counts())}", *self.reasons()))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        reasons = markup.bullet_list(self.reasons()) if self.differences else ""
        html = markup.card("Restored", self._state(), self._picture(), markup.facts(self._facts()), reasons)
        return markup.bundle(repr(self), html)

    @property
    def line(self) -> str:
        """The report in one line."""
        return "; ".join(self._counts())

    def _state(self) -> str:
        ratio = self.cold_seconds / self.seconds if self.cold_seconds and self.seconds else 0.0
        faster = f", {ratio:.{0 if ratio >= 9.95 else 1}f} times as fast as a cold start" if ratio >= 1.05 else ""
        return f"open after {markup.seconds(self.seconds)}{faster}"

    def _picture(self) -> str:
        """Return a bar for the cold start and a bar for this start; empty without a measured cold start."""
        if not self.cold_seconds:
            return ""
        whole = max(self.cold_seconds, self.seconds)
        cold = _bar("cold start", self.cold_seconds, whole, f"rgb({markup.COOL})")
        return cold + _bar("this start", self.seconds, whole, f"rgb({markup.EMBER})")

    def _facts(self) -> dict[str, str | None]:
        """Return the numbers of the card, by name."""
        states = f" and {markup.quantity(self.states, 'state')}" if self.states else ""
        missing = self.stored - self.programs
        return {
            "programs loaded": f"{self.programs:,}" + (f" of {self.stored:,}" if missing > 0 else ""),
            "compiled": f"{self.compiled:,}" + (f", {self.to_compile:,} still to compile" if self.to_compile else ""),
            "saved": f"{markup.seconds(self.compile_seconds)} of compiling" if self.compile_seconds else None,
            "cached": f"{markup.quantity(self.nodes, 'page')} ({markup.quantity(self.tokens, 'token')}){states}"
            if self.nodes
            else None,
        }

    def _counts(self) -> list[str]:
        tokens = markup.quantity(self.tokens, "token")
        states = f" and {markup.quantity(self.states, 'state')}" if self.states else ""
        return [
            f"{self._programs()}, {self.compiled} compiled"
            + (f", {self.to_compile} still to compile" if self.to_compile else ""),
            *([f"{markup.quantity(self.nodes, 'cached page')} ({tokens}){states} found"] if self.nodes else []),
            f"open after {self.seconds:.2f} s" + (f" ({self.cold_seconds:.2f} s cold)" if self.cold_seconds else ""),
            *([f"saved {markup.seconds(self.compile_seconds)} of compiling"] if self.compile_seconds else []),
        ]

    def _programs(self) -> str:
        if self.programs + self.compiled < self.stored:  # a damaged program is compiled again
            return f"{markup.quantity(self.stored, 'stored program')} ({self.programs} loaded until now)"
        return f"{markup.quantity(self.programs, 'program')} loaded"

    def reasons(self) -> list[str]:
        """Return the reasons for unused entries, one line for each."""
        return [
            f"stored entries differ in {difference_text(part, here, there)}"
            for part, (here, there) in self.differences.items()
        ]


def _bar(name: str, seconds: float, whole: float, colour: str) -> str:
    """Return a bar for a duration, between its name and its seconds."""
    time = markup.seconds(seconds)
    bar = markup.bar({colour: seconds}, f"{name}: {time}", whole=whole)
    style = "display:flex;align-items:center;gap:0 0.8em;max-width:44em;margin:0.1em 0 0 0"
    label = f'<span style="flex:0 0 5.5em;{markup.PALE}">{markup.visible(name)}</span>'
    return f'<div style="{style}">{label}{bar}<span style="flex:0 0 5em">{markup.visible(time)}</span></div>'


def difference_text(part: str, here: str, there: str) -> str:
    """Format one differing part of a key: its label, the stored value, and the value in this process."""
    empty = PLAIN_NUMBERS if part == "numerics" else NO_VALUE
    return f"{part_label(part)}: {_value_text(there) or empty} there, {_value_text(here) or empty} here"


def part_label(part: str) -> str:
    """Return the name of a key part, with its explanation if there is one."""
    return f"{part} ({MEANINGS[part]})" if part in MEANINGS else part


def _value_text(value: str) -> str:
    """Return a value as one printable line. Values come from files, so invisible characters are escaped."""
    return markup.one_line(markup.spelled(value), MAX_CHARACTERS)
