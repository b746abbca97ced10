"""Builds the library of native kernels: `python -m rekindle_kernels.cpu.build`.

It takes a C++17 compiler and the headers that jaxlib brings. Nothing but the standard library is imported here, because
wheels are built where jax is not installed.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

PACKAGE: Final = Path(__file__).parent
SOURCES: Final = PACKAGE / "source"
CARRIED: Final = "librekindle.so"
"""The name of the library that a wheel carries, which is there whatever jaxlib is installed."""

COMPILERS: Final = ("c++", "g++", "clang++")
"""The compilers that are looked for, unless the environment names one as CXX."""

_AVX512: Final = ("-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
INSTRUCTION_SETS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "x86_64": {"avx2": ("-mavx2", "-mfma"), "avx512": _AVX512, "avx512_bf16": (*_AVX512, "-mavx512bf16")},
    "aarch64": {"neon": ()},
}
"""The compiler's flags for each instruction set of an architecture; a later one has all of an earlier one."""
NEW: Final = ("avx512_bf16",)
"""The instruction sets that compilers with C++17 need not know, and without which the library is built then."""

FLAGS: Final = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",  # GCC's default; clang would not fuse across statements
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
)
# Hidden are the symbols of the C++ library too: the process may have another C++ library.
LINUX: Final = ("-shared", "-static-libstdc++", "-static-libgcc")
MACOS: Final = ("-dynamiclib", "-Wl,-exported_symbol,_rekindle_*")
EXACT: Final = "-ffp-contract=off"
"""The flag for weights, whose numbers in blocks are rounded as the gguf library does it."""
EXPORTS: Final = "{ global: rekindle_*; local: *; };"


class CannotBuild(Exception):
    """The library cannot be built here.

    Attributes:
        output: what the compiler said, if it was started.
    """

    def __init__(self, reason: str, output: str = ""):
        super().__init__(reason)
        self.output = output


def library() -> Path:
    """Return where the library of these sources for the installed jaxlib is, or would be.

    Raises:
        CannotBuild: there are no sources, or no jaxlib.
    """
    return PACKAGE / f"{_prefix()}{_digest()}.so"


def build(to: Path, flags: Sequence[str] = ()) -> None:
    """Build the library as a file, which appears only when it is whole.

    Args:
        to: the file.
        flags: more flags for the compiler and the linker.

    Raises:
        CannotBuild: there is no compiler, it does not compile the sources, or the folder cannot be written to.
    """
    command, include = compiler(), _include()
    try:
        with TemporaryDirectory(prefix=".build-", dir=to.parent.resolve()) as temporary:
            objects = _compile([*command, *FLAGS, *flags, "-isystem", str(include)], Path(temporary))
            os.replace(_link([*command, *flags], objects, Path(temporary)), to)
    except OSError as error:
        raise CannotBuild(f"the library cannot be written to {to.parent}: {error.strerror or error}") from error


def build_here() -> Path:
    """Build the library beside its sources if it is not there, and drop those of former sources.

    Raises:
        CannotBuild: see `build`.
    """
    file = library()
    if not file.exists():
        sys.stderr.write(
            f"rekindle: compiling its kernels for this CPU with {' '.join(compiler())} (once, about 10 seconds)\n"
        )
        build(file)
        for former in PACKAGE.glob(f"{_prefix()}*.so"):
            if former != file:
                former.unlink(missing_ok=True)
    return file


def compiler() -> list[str]:
    """Return the command of the compiler: the words of CXX, or the first that is found.

    Raises:
        CannotBuild: there is none.
    """
    if sys.platform == "win32":
        raise CannotBuild("they are not built on Windows")
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise CannotBuild(f"no C++ compiler was found: CXX names {named[0]}, which is not there")
        return named
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise CannotBuild("no C++ compiler was found: install g++ or clang")


def architecture() -> str:
    """Return the architecture of this machine, by the name that Linux has for it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _prefix() -> str:
    major, minor = _ffi_version()
    return f"librekindle-{sys.platform}-{architecture()}-ffi{major}.{minor}-"


def _digest() -> str:
    """Return a digest of all that the library is made of, but for the compiler and its headers."""
    whole = hashlib.sha256()
    for file in (*_sources("*"), Path(__file__)):
        whole.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _sources(pattern: str) -> list[Path]:
    if not (found := sorted(SOURCES.glob(pattern))):
        raise CannotBuild(f"its C++ sources are not in {SOURCES}")
    return found


def _include() -> Path:
    """Return the folder of the headers, as `jax.ffi.include_dir` does."""
    spec = find_spec("jaxlib")
    if spec is None or spec.origin is None:
        raise CannotBuild("jaxlib, which brings the headers, is not installed")
    return Path(spec.origin).parent / "include"


def _ffi_version() -> tuple[str, str]:
    header = _include() / "xla/ffi/api/c_api.h"
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text(encoding="utf-8")))
        return found["MAJOR"], found["MINOR"]
    except (OSError, KeyError) as error:
        raise CannotBuild(f"jaxlib has no {header}, or not with the version of its interface") from error


def _compile(command: list[str], folder: Path) -> list[Path]:
    """Compile all sources at once; return the objects as they must be linked.

    Functions of the C++ library may be in many objects, and the linker keeps the first of each. So the objects that
    every machine can run come first, and no instruction is taken from a set that the machine does not have.
    """
    sets = INSTRUCTION_SETS.get(architecture(), {})
    if not sets:
        raise CannotBuild(f"there are none for {architecture()}")
    known = {name: flags for name, flags in sets.items() if name not in NEW or _compiles([*command, *flags], folder)}
    have = [f"-DREKINDLE_HAVE_{name}" for name in known]
    jobs = [(source, source.stem, have) for source in (*_sources("dispatch.cc"), *_sources("handlers_*.cc"))]
    jobs += [(source, source.stem, [EXACT]) for source in _sources("pack.cc")]
    jobs += [(SOURCES / "isa.cc", name, [f"-DREKINDLE_ISA={name}", *flags]) for name, flags in known.items()]

    def compiled(job: tuple[Path, str, list[str]]) -> Path:
        source, name, flags = job
        to = folder / f"{name}.o"
        _run([*command, *flags, "-c", source.name, "-o", str(to)])
        return to

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compiled, jobs))


def _compiles(command: list[str], folder: Path) -> bool:
    """Return whether the compiler knows all these flags."""
    (empty := folder / "empty.cc").touch()
    try:
        _run([*command, "-c", str(empty), "-o", str(folder / "empty.o")])
    except CannotBuild:
        return False
    return True


def _link(command: list[str], objects: list[Path], folder: Path) -> Path:
    (exports := folder / "exports.map").write_text(EXPORTS, encoding="utf-8")
    platform_flags = MACOS if sys.platform == "darwin" else (*LINUX, f"-Wl,--version-script={exports}")
    to = folder / "librekindle.so"
    _run([*command, *map(str, objects), *platform_flags, "-o", str(to)])
    return to


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=SOURCES, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise CannotBuild(f"the C++ compiler {command[0]} could not be started: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        said = next((line for line in lines if "error" in line), lines[-1])
        raise CannotBuild(f"{command[0]} could not compile the C++ sources: {said}", done.stderr)


def _main() -> int:
    try:
        build_here()
    except CannotBuild as error:
        sys.stderr.write(f"{error.output}rekindle will compute without its C++ kernels: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
