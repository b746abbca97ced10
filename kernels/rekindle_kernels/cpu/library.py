"""The native kernel library of this process. It is found or built, loaded, and registered in XLA on first use."""

import ctypes
import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jax

from rekindle_kernels.cpu import build

TARGETS: Final = (
    "rekindle_adjust",
    "rekindle_argmax",
    "rekindle_attend_blocks",
    "rekindle_attend_blocks_until",
    "rekindle_attend_rows",
    "rekindle_convolve",
    "rekindle_count_above",
    "rekindle_draw",
    "rekindle_empty",
    "rekindle_gate",
    "rekindle_grouped_linear",
    "rekindle_linear",
    "rekindle_look_up",
    "rekindle_mass",
    "rekindle_norm",
    "rekindle_nth_largest",
    "rekindle_read_page",
    "rekindle_recur",
    "rekindle_rotate",
    "rekindle_stored_grouped_linear",
    "rekindle_stored_linear",
    "rekindle_stored_look_up",
    "rekindle_write",
    "rekindle_write_page",
)
"""The library's functions for programs. They have the same names in programs."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library, with functions registered in XLA.

    Attributes:
        functions: the exported functions.
        digest: the SHA-256 of the file, 64 hexadecimal digits.
        instruction_set: the instruction set of its kernels on this machine, such as "avx512".
    """

    functions: ctypes.CDLL
    digest: str
    instruction_set: str


class LibraryUnavailable(RuntimeError):
    """Error for a library that this process cannot use. The message has the reason and the remedy."""


def unavailable_reason() -> str | None:
    """Return the reason this process cannot use the library, or None. The first call may compile it, for seconds."""
    outcome = _load_once()
    return outcome if isinstance(outcome, str) else None


def load() -> ctypes.CDLL:
    """Load the library and register its functions in XLA, once per process.

    Raises:
        LibraryUnavailable: see `unavailable_reason`.
    """
    return _library().functions


def digest() -> str:
    """Return the SHA-256 of the library's file, 64 hexadecimal digits.

    Raises:
        LibraryUnavailable: see `unavailable_reason`.
    """
    return _library().digest


def instruction_set() -> str:
    """Return the instruction set of the kernels on this machine, such as "avx2", "avx512_bf16" or "neon".

    Raises:
        LibraryUnavailable: see `unavailable_reason`.
    """
    return _library().instruction_set


def _library() -> Library:
    outcome = _load_once()
    if isinstance(outcome, str):
        raise LibraryUnavailable(outcome)
    return outcome


def _load_once() -> Library | str:
    """Return the library, or the reason it cannot be used. The first outcome holds for the process."""
    global _outcome
    with _lock:
        if _outcome is None:
            try:
                _outcome = _load(_file())
            except (build.BuildFailed, LibraryUnavailable) as error:
                _outcome = str(error)
        return _outcome


def _file() -> Path:
    """Return the library's file from the wheel, or build one."""
    bundled = build.PACKAGE / build.BUNDLED
    return bundled if bundled.exists() else build.build_here()


def _load(file: Path) -> Library:
    try:
        content = file.read_bytes()
        exports = ctypes.CDLL(str(file))
        functions = [getattr(exports, name) for name in TARGETS]
        query = exports.rekindle_instruction_set
    except (OSError, AttributeError) as error:
        raise LibraryUnavailable(f"the library of C++ kernels could not be loaded: {error}") from error
    query.restype = ctypes.c_char_p
    name = query()
    if name is None:
        raise LibraryUnavailable(_missing_set())
    try:
        jax.devices("cpu")  # start XLA: before its start it accepts any function, and a wrong one then stops the start
        for target, function in zip(TARGETS, functions, strict=True):
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
    except RuntimeError as error:
        raise LibraryUnavailable(f"XLA did not accept the C++ kernels: {error}") from error
    return Library(exports, hashlib.sha256(content).hexdigest(), name.decode())


def _missing_set() -> str:
    """Return the reason for a library without kernels for this machine."""
    own = build.INSTRUCTION_SETS.get(build.architecture(), {})
    sets = " or ".join((*own, *build.TILES) if build.BELOW_TILES in own else own)
    if choice := os.environ.get(build.CHOICE):
        return f'{build.CHOICE} is "{choice}", which this CPU or the library lacks: unset it, or name {sets}'
    return f"this CPU has none of the instruction sets of the C++ kernels: {sets or 'it is unknown'}"


_lock: Final = threading.Lock()
_outcome: Library | str | None = None
