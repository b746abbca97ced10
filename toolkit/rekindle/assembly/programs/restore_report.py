"""Report of the programs and pages restored by a session."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.core.words import one_line, quantity, seconds, size_text, spelled

MEANINGS: Final = {
    "code": "the sources of Rekindle",
    "statics": "compiled-in sizes",
    "arguments": "shapes of program arguments",
    "shardings": "shardings of program arguments",
    "model": "the model's config",
    "weights": "the content of the weight files",
    "configs": "the content of config.json and of the files like it",
    "tower": "the config of the vision tower",
    "family": "the function given as family",
    "numbers": "data types, and packed weights",
    "page": "dtype and shape of a page",
    "machine": "the CPU, or the kind of device",
    "library": "instruction set and library of the C++ kernels",
    "compiler": "versions, settings and flags of JAX and XLA",
    "devices": "the number of devices of a sum",
    "rows": "the program of deterministic=True",
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
        weight_bytes: bytes of converted weights that were read instead of the model's files.
        states: number of cached states found in the snapshot, for a model whose layers keep one.
        to_compile: number of programs being compiled in the background, or waiting for it.
        cold_seconds: time of `open` when none of these programs was stored, as measured then; None if it is unknown, or
            for a cold start itself.
        spent: the parts of `seconds` in order, with the same sum: "files" (download, config, tokenizer), "plan"
            (device, sizes, stores), "weights", "programs" (the wait after the weights) and "engine". Empty for replicas
            in other processes.
    """

    stored: int
    programs: int
    compiled: int
    nodes: int
    tokens: int
    seconds: float
    compile_seconds: float
    differences: dict[str, tuple[str, str]]
    weight_bytes: int = 0
    states: int = 0
    to_compile: int = 0
    cold_seconds: float | None = None
    spent: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "\n  ".join((f"<rekindle restored: {'; '.join(self._counts())}>", *self.reasons()))

    def __str__(self) -> str:
        spent = ", ".join(f"{seconds(each)} {part}" for part, each in self.spent.items())
        return "\n  ".join((f"restored: {self.line}", *([f"opening: {spent}"] if spent else []), *self.reasons()))

    @property
    def line(self) -> str:
        """The report in one line."""
        return "; ".join(self._counts())

    def _counts(self) -> list[str]:
        tokens = quantity(self.tokens, "token")
        states = f" and {quantity(self.states, 'state')}" if self.states else ""
        return [
            f"{self._programs()}, {self.compiled} compiled"
            + (f", {self.to_compile} still to compile" if self.to_compile else ""),
            *([f"{quantity(self.nodes, 'cached page')} ({tokens}){states} found"] if self.nodes else []),
            *([f"{size_text(self.weight_bytes)} of weights kept"] if self.weight_bytes else []),
            f"open after {self.seconds:.2f} s" + (f" ({self.cold_seconds:.2f} s cold)" if self.cold_seconds else ""),
            *([f"saved {seconds(self.compile_seconds)} of compiling"] if self.compile_seconds else []),
        ]

    def _programs(self) -> str:
        if self.programs + self.compiled < self.stored:  # a damaged program is compiled again
            return f"{quantity(self.stored, 'stored program')} ({self.programs} loaded until now)"
        return f"{quantity(self.programs, 'program')} loaded"

    def reasons(self) -> list[str]:
        """Return the reasons for unused entries, one line for each."""
        return [
            f"stored entries differ in {difference_text(part, here, there)}"
            for part, (here, there) in self.differences.items()
        ]


def difference_text(part: str, here: str, there: str) -> str:
    """Format one differing part of a key: its label, the stored value, and the value in this process."""
    return f"{part_label(part)}: {_value_text(there) or NO_VALUE} there, {_value_text(here) or NO_VALUE} here"


def part_label(part: str) -> str:
    """Return the name of a key part, with its explanation if there is one."""
    return f"{part} ({MEANINGS[part]})" if part in MEANINGS else part


def _value_text(value: str) -> str:
    """Return a value as one printable line. Values come from files, so invisible characters are escaped."""
    return one_line(spelled(value), MAX_CHARACTERS)
