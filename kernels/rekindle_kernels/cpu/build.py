"""Build of the native kernel library: `python -m rekindle_kernels.cpu.build`.

It needs a C++17 compiler and jaxlib's headers. This module imports only the standard library, because wheels are built
without jax.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic
from typing import Final

PACKAGE: Final = Path(__file__).parent
SOURCES: Final = PACKAGE / "source"
BUNDLED: Final = "librekindle.so"
"""Name of the library inside a wheel, independent of the installed jaxlib."""

LIFE_SECONDS: Final = 10.0
"""The time between signs of life of a build."""
COMPILERS: Final = ("c++", "g++", "clang++")
"""Compilers to look for, unless the environment variable CXX is set."""

_AVX512: Final = ("-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_AVX512_BF16: Final = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
INSTRUCTION_SETS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": _AVX512,
        "avx512_bf16": _AVX512_BF16,
    },
    "aarch64": {"neon": ()},
}
"""Compiler flags for each instruction set of an architecture; a later set includes the earlier ones."""
TILES: Final[dict[str, tuple[str, ...]]] = {
    "amx_reference": _AVX512_BF16,
    "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
}
"""Compiler flags of AMX and of its reference without AMX, of the same bits. They need `BELOW_TILES`."""
BELOW_TILES: Final = "avx512_bf16"
"""The instruction set of all kernels without tiles."""
_CPU_AVX512: Final = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_CPU_BF16: Final = (*_CPU_AVX512, "avx512_bf16", "avx512_vnni")
CPU_FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "amx_reference": _CPU_BF16,
    "avx2": ("avx2", "fma"),
    "avx512": _CPU_AVX512,
    "avx512_bf16": _CPU_BF16,
    "amx": (*_CPU_BF16, "amx_tile", "amx_bf16"),
}
"""Flags in /proc/cpuinfo of a CPU with an instruction set of x86_64; the best set is the last."""
CPUINFO: Final = Path("/proc/cpuinfo")
CHOICE: Final = "REKINDLE_ISA"
"""The environment variable with the name of an instruction set to use, instead of the best of this machine."""
NEW: Final = ("avx512_bf16", "amx")
"""Instruction sets unknown to some C++17 compilers; the library is then built without them."""
PROBE: Final = """
#if defined(__AMX_BF16__)
void probe() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }
#endif
"""
"""A source with an instruction of tiles."""

HOST_PLATFORM: Final = "_PYTHON_HOST_PLATFORM"
"""Environment variable of a build for another platform, which `sysconfig.get_platform` returns: `linux-aarch64`."""

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
# The C++ library's symbols are hidden too: the process may have another C++ library.
LINUX: Final = ("-shared", "-static-libstdc++", "-static-libgcc")
MACOS: Final = ("-dynamiclib", "-Wl,-exported_symbol,_rekindle_*")
EXACT: Final = "-ffp-contract=off"
"""Flag for dequantization, whose rounding must equal the gguf library's."""
EXACT_SOURCES: Final = ("codes.cc", "widen.cc")
"""Sources of each instruction set with the flag EXACT."""
LONGEST: Final = ("stored.cc", "isa.cc")
"""Sources with the longest times of compiling."""
EXPORTS: Final = "{ global: rekindle_*; local: *; };"


class BuildFailed(Exception):
    """Error of a failed build.

    Attributes:
        output: the compiler's output, if it was started.
    """

    def __init__(self, reason: str, output: str = ""):
        super().__init__(reason)
        self.output = output


def own_set() -> str:
    """Return the instruction set to compile for this CPU, the best or the one of `CHOICE`; "" if unknown."""
    if architecture() != "x86_64":
        return next(iter(INSTRUCTION_SETS.get(architecture(), {"": ()})))
    try:
        text = "" if HOST_PLATFORM in os.environ else CPUINFO.read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        return ""
    line = re.search(r"^flags\s*:(.*)$", text, re.M)
    flags = set(line[1].split()) if line else set()
    sets = [name for name, needed in CPU_FLAGS.items() if flags.issuperset(needed)]
    choice = os.environ.get(CHOICE, "")
    return choice if choice in sets else sets[-1] if sets else ""


def library() -> Path:
    """Return the path of the library for this CPU, these sources and the installed jaxlib, whether it exists or not.

    Raises:
        BuildFailed: the sources or jaxlib are missing.
    """
    return PACKAGE / f"{_prefix()}{_digest()}{f'-{name}' if (name := own_set()) else ''}.so"


def build(
    to: Path, flags: Sequence[str] = (), only: str = "", report: Callable[[int, int], None] | None = None
) -> None:
    """Build the library as a file. The file appears only when it is complete.

    Args:
        to: the file.
        flags: additional flags for the compiler and the linker.
        only: an instruction set, with those that it needs, or with the next lower one for an older compiler; "" for all
            instruction sets.
        report: called with the number of compiled sources, and of all, from several threads.

    Raises:
        BuildFailed: the compiler is missing or fails, or the folder is not writable.
    """
    command, include = compiler(), _include()
    try:
        with TemporaryDirectory(prefix=".build-", dir=to.parent.resolve()) as temporary:
            objects = _compile([*command, *FLAGS, *flags, "-isystem", str(include)], Path(temporary), only, report)
            os.replace(_link([*command, *flags], objects, Path(temporary)), to)
    except OSError as error:
        raise BuildFailed(f"the library cannot be written to {to.parent}: {error.strerror or error}") from error


def build_here() -> Path:
    """Build the library next to its sources unless it exists, and delete libraries of former sources.

    Raises:
        BuildFailed: see `build`.
    """
    file = library()
    if not file.exists():
        command = " ".join(compiler())
        sys.stderr.write(f"rekindle: compiling its kernels for this CPU with {command} (once; it can take minutes)\n")
        progress = ["0"]

        def report(done: int, total: int) -> None:
            progress[0] = f"{done} of {total}"

        def write(seconds: float) -> None:
            text = f"rekindle: still compiling its kernels after {seconds:.0f} s: {progress[0]} files"
            sys.stderr.write(text + "\n")

        with signs_of_life(LIFE_SECONDS, write):
            build(file, only=own_set(), report=report)
        for other in PACKAGE.glob(f"{_prefix()}*.so"):
            if _digest() not in other.name:  # of former sources
                other.unlink(missing_ok=True)
    return file


@contextmanager
def signs_of_life(seconds: float, write: Callable[[float], None]) -> Iterator[None]:
    """Call `write` from a thread every `seconds` of a block, with the seconds since its beginning."""
    begin, done = monotonic(), Event()

    def beat() -> None:
        while not done.wait(seconds):
            write(monotonic() - begin)

    thread = Thread(target=beat, name="rekindle-build", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def compiler() -> list[str]:
    """Return the command of the compiler: the words of CXX, or the first of `COMPILERS` on the path.

    Raises:
        BuildFailed: no compiler exists.
    """
    if sys.platform == "win32":
        raise BuildFailed("they are not built on Windows")
    if command := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(command[0]) is None:
            raise BuildFailed(f"no C++ compiler was found: CXX names {command[0]}, which does not exist")
        return command
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise BuildFailed("no C++ compiler was found: install g++ or clang")


def architecture() -> str:
    """Return the architecture to build for, by its Linux name: this machine's, except in a build for another."""
    name = (os.environ.get(HOST_PLATFORM, "").rpartition("-")[2] or platform.machine()).lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _system() -> str:
    """Return the system to build for, by its name in `sys.platform`."""
    return {"macosx": "darwin"}.get(name := os.environ.get(HOST_PLATFORM, "").partition("-")[0], name) or sys.platform


def _prefix() -> str:
    major, minor = _ffi_version()
    return f"librekindle-{_system()}-{architecture()}-ffi{major}.{minor}-"


def _digest() -> str:
    """Return a digest of the library's sources and build flags, without the compiler and its headers."""
    whole = hashlib.sha256()
    for file in (*_sources("*"), Path(__file__)):
        whole.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _sources(pattern: str) -> list[Path]:
    if not (files := sorted(SOURCES.glob(pattern))):
        raise BuildFailed(f"its C++ sources are not in {SOURCES}")
    return files


def _include() -> Path:
    """Return the folder of the headers, equal to `jax.ffi.include_dir()`."""
    spec = find_spec("jaxlib")
    if spec is None or spec.origin is None:
        raise BuildFailed("jaxlib, which has the headers, is not installed")
    return Path(spec.origin).parent / "include"


def _ffi_version() -> tuple[str, str]:
    header = _include() / "xla/ffi/api/c_api.h"
    try:
        version = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text(encoding="utf-8")))
        return version["MAJOR"], version["MINOR"]
    except (OSError, KeyError) as error:
        raise BuildFailed(f"jaxlib has no {header}, or the file lacks the interface version") from error


def _compile(command: list[str], folder: Path, only: str, report: Callable[[int, int], None] | None) -> list[Path]:
    """Compile all sources in parallel, for one instruction set or all; return the objects in link order.

    A function of the C++ library may be in many objects, and the linker keeps the first copy. So objects without
    special instructions come first: no shared function then needs an instruction set missing on this machine.
    """
    flags_of, tiles = _chosen_sets(command, folder, only)
    have = [f"-DREKINDLE_HAVE_{name}" for name in (*flags_of, *tiles)]
    jobs = [(source, source.stem, have) for source in (*_sources("dispatch.cc"), *_sources("handlers_*.cc"))]
    jobs += [(source, source.stem, [EXACT]) for source in _sources("pack*.cc")]
    for name, flags in flags_of.items():
        jobs.append((SOURCES / "isa.cc", name, [f"-DREKINDLE_ISA={name}", *flags]))
        jobs.append((SOURCES / "stored.cc", f"stored_{name}", [f"-DREKINDLE_ISA={name}", *flags]))
        for source in (SOURCES / file for file in EXACT_SOURCES):
            jobs.append((source, f"{source.stem}_{name}", [f"-DREKINDLE_ISA={name}", *flags, EXACT]))
    jobs += [(SOURCES / "tiles.cc", name, [f"-DREKINDLE_ISA={name}", *flags]) for name, flags in tiles.items()]

    def compile_one(job: tuple[Path, str, list[str]]) -> Path:
        source, name, flags = job
        to = folder / f"{name}.o"
        _run([*command, *flags, "-c", source.name, "-o", str(to)])
        if report is not None:
            report(next(done), len(jobs))
        return to

    done = count(1)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        futures = {job[1]: threads.submit(compile_one, job) for job in _longest_first(jobs)}
        return [futures[name].result() for _, name, _ in jobs]


def _longest_first(jobs: Sequence[tuple[Path, str, list[str]]]) -> list[tuple[Path, str, list[str]]]:
    """Return jobs with those of `LONGEST` first, against a long one alone at the end."""
    names = [*LONGEST, *(source.name for source, *_ in jobs)]
    return sorted(jobs, key=lambda job: names.index(job[0].name))


def _chosen_sets(
    command: list[str], folder: Path, only: str
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the instruction sets to compile with their flags, and those of tiles."""
    sets, tiles = INSTRUCTION_SETS.get(architecture(), {}), TILES
    if not sets:
        raise BuildFailed(f"there are none for {architecture()}")
    if only:
        base = BELOW_TILES if only in TILES else only
        lower = takewhile(lambda name: name != base, sets)
        sets = {name: sets[name] for name in (*lower, base) if name in sets}
        tiles = {name: flags for name, flags in TILES.items() if name == only}
    compiled = _sets(sets, command, folder)
    tiles = _sets(tiles, command, folder) if BELOW_TILES in compiled else {}
    return (dict([compiled.popitem()]) if only else compiled), tiles


def _sets(flags_of: dict[str, tuple[str, ...]], command: list[str], folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the instruction sets of the compiler, with their flags."""
    return {name: flags for name, flags in flags_of.items() if name not in NEW or _compiles([*command, *flags], folder)}


def _compiles(command: list[str], folder: Path) -> bool:
    """Return True if the compiler supports all these flags, and its assembler the instructions of tiles with them."""
    (probe := folder / "probe.cc").write_text(PROBE, encoding="utf-8")
    try:
        _run([*command, "-c", str(probe), "-o", str(folder / "probe.o")])
    except BuildFailed:
        return False
    return True


def _link(command: list[str], objects: list[Path], folder: Path) -> Path:
    (exports := folder / "exports.map").write_text(EXPORTS, encoding="utf-8")
    platform_flags = MACOS if _system() == "darwin" else (*LINUX, f"-Wl,--version-script={exports}")
    to = folder / "librekindle.so"
    _run([*command, *map(str, objects), *platform_flags, "-o", str(to)])
    return to


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, cwd=SOURCES, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise BuildFailed(f"the C++ compiler {command[0]} could not be started: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        message = next((line for line in lines if "error" in line), lines[-1])
        raise BuildFailed(f"{command[0]} could not compile the C++ sources: {message}", done.stderr)


def _main() -> int:
    try:
        build_here()
    except BuildFailed as error:
        sys.stderr.write(f"{error.output}rekindle will compute without its C++ kernels: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
