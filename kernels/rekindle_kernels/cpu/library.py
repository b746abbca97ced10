"""The library of native kernels in this process: found or built, loaded, and made known to XLA, at its first use."""

import ctypes
import hashlib
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
    "rekindle_attend_rows",
    "rekindle_count_above",
    "rekindle_draw",
    "rekindle_empty",
    "rekindle_gate",
    "rekindle_grouped_linear",
    "rekindle_linear",
    "rekindle_look_up",
    "rekindle_mass",
    "rekindle_nth_largest",
    "rekindle_read_page",
    "rekindle_rms_norm",
    "rekindle_rotate",
    "rekindle_write",
    "rekindle_write_page",
)
"""The functions of the library that programs call, by the names that they have in programs too."""


@dataclass(frozen=True, slots=True)
class Library:
    """The library, once its functions are known to XLA.

    Attributes:
        functions: all that it exports.
        digest: of its file, 64 hexadecimal digits.
        instruction_set: whose kernels run on this machine, such as "avx512".
    """

    functions: ctypes.CDLL
    digest: str
    instruction_set: str


class CannotServe(RuntimeError):
    """The library cannot be used in this process; the message says why, and what can be done."""


def why_not() -> str | None:
    """Return why the library cannot be used here, or None if it can. The first call may compile it, for seconds."""
    found = _found()
    return found if isinstance(found, str) else None


def load() -> ctypes.CDLL:
    """Load the library, and make its functions known to XLA, unless this process did so before.

    Raises:
        CannotServe: see `why_not`.
    """
    return _library().functions


def digest() -> str:
    """Return a digest of the library's file: 64 hexadecimal digits.

    Raises:
        CannotServe: see `why_not`.
    """
    return _library().digest


def instruction_set() -> str:
    """Return the instruction set whose kernels run on this machine, such as "avx2", "avx512_bf16" or "neon".

    Raises:
        CannotServe: see `why_not`.
    """
    return _library().instruction_set


def _library() -> Library:
    found = _found()
    if isinstance(found, str):
        raise CannotServe(found)
    return found


def _found() -> Library | str:
    """Return the library, or why there is none. What the first call finds holds for the process."""
    global _outcome
    with _lock:
        if _outcome is None:
            try:
                _outcome = _loaded(_file())
            except (build.CannotBuild, CannotServe) as error:
                _outcome = str(error)
        return _outcome


def _file() -> Path:
    """Return the library's file, which came in the wheel, or is built here if there is none."""
    carried = build.PACKAGE / build.CARRIED
    return carried if carried.exists() else build.build_here()


def _loaded(file: Path) -> Library:
    try:
        content = file.read_bytes()
        opened = ctypes.CDLL(str(file))
        functions = [getattr(opened, name) for name in TARGETS]
        ask = opened.rekindle_instruction_set
    except (OSError, AttributeError) as error:
        raise CannotServe(f"the library of C++ kernels could not be loaded: {error}") from error
    ask.restype = ctypes.c_char_p
    name = ask()
    if name is None:
        sets = " or ".join(build.INSTRUCTION_SETS.get(build.architecture(), ()))
        raise CannotServe(f"this CPU has none of the instruction sets of the C++ kernels: {sets or 'it is unknown'}")
    try:
        jax.devices("cpu")  # before its start, XLA would take any function, and then refuse to start with a wrong one
        for target, function in zip(TARGETS, functions, strict=True):
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
    except RuntimeError as error:
        raise CannotServe(f"XLA did not accept the C++ kernels: {error}") from error
    return Library(opened, hashlib.sha256(content).hexdigest(), name.decode())


_lock: Final = threading.Lock()
_outcome: Library | str | None = None
