"""The library of native kernels: built whole or not at all, loaded once, with a reason where it is missing."""

import ctypes
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle_kernels
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.programs.key import SharedKey, Target
from rekindle.core.device.programs.store import OBJECT_FILES
from rekindle_kernels.api import library_of
from rekindle_kernels.cpu import build, library
from tests.unit.stored_programs import MODEL, nth, open_programs
from tests.waiting import until_blocking

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")

SMALL = """
#define VISIBLE extern "C" __attribute__((visibility("default")))
VISIBLE int rekindle_answer() { return 42; }
VISIBLE int another() { return 1; }
"""
PROBE = """
import json
import jax.numpy as jnp
from rekindle_kernels.api import choose
from rekindle_kernels.cpu import library
pool, dtype = (2, 2, 1, 16, 8), jnp.dtype("float32")
chosen = choose("cpu", [pool], dtype)
print(json.dumps([library.unavailable_reason(), chosen.implementation, str(chosen)]))
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package without its library."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(rekindle_kernels.__file__).parent, tmp_path / "rekindle_kernels", ignore=ignored)
    return tmp_path


def probe(folder: Path, **variables: str) -> tuple[str | None, str, str, str]:
    """Return the output of `PROBE` with a copy (the reason, implementation and description) and standard error."""
    environment = os.environ | {"PYTHONPATH": str(folder)} | variables
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    reason, implementation, description = json.loads(done.stdout)
    return reason, implementation, description, done.stderr


def test_without_a_compiler_xla_serves_and_says_what_to_install(copied: Path) -> None:
    reason, implementation, description, _ = probe(copied, PATH=str(copied), CXX="")
    assert reason == "no C++ compiler was found: install g++ or clang"
    assert (implementation, description) == ("xla", f"xla kernels ({reason})")


@pytest.mark.wide
def test_a_compiler_that_fails_is_named(copied: Path) -> None:
    reason, implementation, _, error = probe(copied, CXX="false")
    assert reason is not None
    assert reason.startswith("false could not compile")
    assert implementation == "xla"
    assert error.count("compiling its kernels") == 1
    assert not list(copied.rglob("*.so")), "nothing is left of it"
    assert not list(copied.rglob(".build-*"))


def test_a_library_that_cannot_be_loaded_is_named_with_what_the_loader_says(copied: Path) -> None:
    (copied / "rekindle_kernels" / "cpu" / build.BUNDLED).write_bytes(b"no library")
    reason, implementation, _, _ = probe(copied)
    assert reason is not None
    assert reason.startswith("the library of C++ kernels could not be loaded: ")
    assert build.BUNDLED in reason
    assert implementation == "xla"


@pytest.mark.skipif(library.unavailable_reason() is not None, reason="there is no native library here")
def test_targets_are_registered_once_however_many_threads_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, *_, **__: registered.append(name))
    monkeypatch.setattr(library, "_outcome", None)
    with ThreadPoolExecutor(8) as threads:
        digests = set(threads.map(lambda _: library.digest(), range(32)))
    assert tuple(registered) == library.TARGETS
    assert len(digests) == 1


@pytest.mark.skipif(library.unavailable_reason() is not None, reason="there is no native library here")
def test_the_library_and_the_instruction_set_are_part_of_the_key_of_native_programs_alone() -> None:
    build_key = partial(SharedKey.of, MODEL, Target.of(jax.devices("cpu")[:1]), JaxSettings.here())
    native, other = build_key("cpu").native_kernels, build_key("xla").native_kernels
    assert native == f"{library.instruction_set()} {library.digest()}" == library_of("cpu")
    assert other == ""


def test_all_handlers_of_the_sources_are_registered() -> None:
    text = "".join(file.read_text() for file in build.SOURCES.glob("handlers_*.cc"))
    assert set(re.findall(r"REKINDLE_HANDLER\(\s*(rekindle_\w+)", text)) == set(library.TARGETS)


def test_the_headers_are_those_that_jax_names() -> None:
    assert build._include() == Path(jax.ffi.include_dir())


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the sources by small ones, which compile in a moment; return their folder."""
    sources = tmp_path / "source"
    sources.mkdir()
    for name in (
        "dispatch.cc",
        "pack.cc",
        "codes.cc",
        "handlers_none.cc",
        "isa.cc",
        "stored.cc",
        "tiles.cc",
        "widen.cc",
    ):
        (sources / name).write_text("")
    (sources / "dispatch.cc").write_text(SMALL)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    return tmp_path


@needs_compiler
def test_a_library_of_former_sources_is_replaced(small: Path) -> None:
    first = build.build_here()
    assert build.build_here() == first
    (small / "source" / "pack.cc").write_text("// changed\n")
    second = build.build_here()
    assert second != first
    assert [file.name for file in small.iterdir() if file.suffix == ".so"] == [second.name]


@needs_compiler
def test_a_long_build_gives_signs_of_life(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()

    def slow(file: Path, only: str, report: Callable[[int, int], None]) -> None:
        report(3, 20)
        until_blocking(lambda: stderr.getvalue().count("still compiling") > 1, "two lines were written")

    monkeypatch.setattr(build, "LIFE_SECONDS", 0.001)
    monkeypatch.setattr(build, "build", slow)
    monkeypatch.setattr(sys, "stderr", stderr)
    build.build_here()
    first, *others = stderr.getvalue().splitlines()
    assert "compiling its kernels for this CPU" in first
    assert all(line.startswith("rekindle: still compiling its kernels after ") for line in others)
    assert others[-1].endswith(" s: 3 of 20 files")
    assert "rekindle-build" not in [thread.name for thread in threading.enumerate()]


@needs_compiler
def test_an_instruction_set_that_the_compiler_does_not_know_is_left_out(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {build.architecture(): {"plain": (), "avx512_bf16": ("-mno-such-set",)}}
    monkeypatch.setattr(build, "INSTRUCTION_SETS", sets)
    (small / "source" / "dispatch.cc").write_text(
        "#ifdef REKINDLE_HAVE_avx512_bf16\n#error\n#endif\n#ifndef REKINDLE_HAVE_plain\n#error\n#endif\n"
    )
    assert build.build_here().exists()


FLAGS = {
    "none": "fpu sse4_2",
    "avx2": "fpu avx2 fma f16c",
    "avx512": "avx2 fma avx512f avx512bw avx512dq avx512vl",
    "avx512_bf16": "avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16",
    "amx": "avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8",
}
"""Flags of CPUs in /proc/cpuinfo, by their best instruction set."""


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes this an x86 CPU with an instruction set."""

    def become(best: str) -> None:
        (file := tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {FLAGS[best]}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(build, "CPUINFO", file)

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv(build.CHOICE, raising=False)
    return become


@pytest.mark.parametrize(
    ("best", "choice", "expected"),
    [
        *((name, "", "" if name == "none" else name) for name in FLAGS),
        ("amx", "avx2", "avx2"),
        ("amx", "amx_reference", "amx_reference"),
        ("avx512", "amx", "avx512"),
        ("avx512", "no-such-set", "avx512"),
    ],
)
def test_the_set_to_compile_is_the_best_of_this_cpu_or_the_chosen_one(
    best: str, choice: str, expected: str, cpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu(best)
    monkeypatch.setenv(build.CHOICE, choice)
    assert build.own_set() == expected
    assert build.library().stem.endswith(f"-{expected}" if expected else build._digest())


@needs_compiler
@pytest.mark.parametrize(
    ("best", "compiled"), [("avx512", ["avx512"]), ("amx", ["amx", "avx512_bf16"]), ("none", list(FLAGS)[1:])]
)
def test_a_build_here_has_the_kernels_of_this_cpu_alone(
    best: str, compiled: list[str], small: Path, cpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu(best)
    sets = {name: (f"-DSET_{name}",) for name in ("avx2", "avx512", "avx512_bf16")}
    monkeypatch.setattr(build, "INSTRUCTION_SETS", {"x86_64": sets})
    monkeypatch.setattr(build, "TILES", {"amx": ("-DSET_amx",)})
    (small / "source" / "dispatch.cc").write_text(
        "".join(
            f"#if{'n' if name in compiled else ''}def REKINDLE_HAVE_{name}\n#error {name}\n#endif\n"
            for name in [*sets, "amx"]
        )
    )
    assert build.build_here().exists()


@needs_compiler
def test_an_older_compiler_builds_the_next_lower_set(
    small: Path, cpu: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu("amx")
    monkeypatch.setattr(
        build, "INSTRUCTION_SETS", {"x86_64": {"avx2": (), "avx512": (), "avx512_bf16": ("-mno-such",)}}
    )
    (small / "source" / "dispatch.cc").write_text("#if !defined(REKINDLE_HAVE_avx512)\n#error\n#endif\n")
    assert build.build_here().stem.endswith("-amx"), "which is what this CPU asks for"


@needs_compiler
def test_processes_that_build_at_once_do_not_disturb_each_other(small: Path) -> None:
    script = (
        "import sys, ctypes; from pathlib import Path; from rekindle_kernels.cpu import build; "
        "build.PACKAGE = Path(sys.argv[1]); build.SOURCES = build.PACKAGE / 'source'; "
        "print(ctypes.CDLL(str(build.build_here())).rekindle_answer())"
    )
    command: Sequence[str] = [sys.executable, "-c", script, str(small)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate()[0].strip() for child in children] == ["42"] * 3
    assert [file.name for file in small.iterdir()].count("source") == 1
    assert len(list(small.iterdir())) == 2, "the sources, one library, and nothing else"


@needs_compiler
def test_only_what_programs_call_can_be_seen(small: Path) -> None:
    loaded = ctypes.CDLL(str(build.build_here()))
    assert loaded.rekindle_answer() == 42
    with pytest.raises(AttributeError):
        _ = loaded.another


@pytest.mark.skipif(library.unavailable_reason() is not None, reason="there is no native library here")
def test_a_program_of_nothing_but_calls_of_the_library_is_stored_though_it_has_no_code_of_its_own(
    tmp_path: Path,
) -> None:
    library.load()
    weight, x = jnp.arange(64, dtype=jnp.float32), jnp.ones((1, 2), jnp.float32)
    none, onto = jnp.zeros(0, jnp.float32), jnp.ones((1, 32), jnp.float32)
    options = {"columns": False, "gated": False, "eps": np.float32(0), "centred": False}
    call = partial(jax.ffi.ffi_call("rekindle_linear", jax.ShapeDtypeStruct((1, 32), jnp.float32)), **options)
    store = open_programs(tmp_path)
    serialized = store.serialize(jax.jit(call).lower(x, weight, none, none, onto).compile())
    assert serialized is not None
    assert not any(magic in serialized.arrays["program"].tobytes() for magic in OBJECT_FILES)
    assert store.save(nth(0), serialized)
    loaded = open_programs(tmp_path).load(nth(0))
    assert loaded is not None
    assert loaded(x, weight, none, none, onto).tolist() == [[33.0 + 2 * column for column in range(32)]]
