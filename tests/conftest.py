"""Fixtures that every kind of test shares."""

import gc
import inspect
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import settings
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from rekindle.core.store.directory import cache_dir
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.embedded import embedded_path
from rekindle.formats.checkpoints.gguf.checkpoint import open_gguf
from rekindle_kernels.api import Implementation, operations_of
from tests.alarm import Alarm
from tests.compilations import listen
from tests.reruns import Reruns
from tests.waiting import bounded
from tests.watchdog import LIMIT_SECONDS, Watchdog

# All runs draw the same examples, so that only a change can make a test fail. Deep tests draw fresh ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

GOLDENS = Path(__file__).parent / "goldens"

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


WITHOUT_FUSIONS = "--xla_cpu_use_fusion_emitters=false"
"""A flag by which XLA compiles whole programs in a third of the time; JAX 0.12 ends its process at it."""

_WATCHDOG = pytest.StashKey[Watchdog]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that the Makefile's targets differ in."""
    group = parser.getgroup("rekindle")
    group.addoption("--rerun-failed", type=int, default=0, help="run so many failed tests once more, alone; at most")
    group.addoption("--optimized", action="store_true", help="compile programs as users have them, which takes longer")
    parser.addini("alarm_seconds", "end a process whose test takes so long, see tests/alarm.py", type="string")
    group.addoption("--judge-steps", action="store_true", help="fail the run if steps on an engine's loop are too long")


def pytest_configure(config: pytest.Config) -> None:
    """Measure each step of every engine's loop from now on, and run failed tests again at the end.

    Programs are compiled without optimization, here and in child processes: most tests compile them to run them once.
    `make test` has no fusions either. Wide tests have: some compare bits of programs that XLA fuses as users have them.
    """
    if not config.getoption("--optimized"):
        jax.config.update("jax_disable_most_optimizations", True)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        flags, is_narrow = os.environ.get("XLA_FLAGS", ""), "not wide" in config.getoption("-m")
        if is_narrow and WITHOUT_FUSIONS not in flags and jax.__version_info__ < (0, 11):
            os.environ["XLA_FLAGS"] = f"{flags} {WITHOUT_FUSIONS}".strip()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reruns(config.getoption("--rerun-failed")))
    config.pluginmanager.register(Alarm(float(config.getini("alarm_seconds"))))
    watchdog = config.stash[_WATCHDOG] = Watchdog()
    stack = ExitStack()
    stack.enter_context(watchdog.watching())
    config.add_cleanup(stack.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave trio to the wide tier, except where waiting itself is tested: the engine has a loop of its own."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        on_trio = callspec is not None and callspec.params.get("anyio_backend") == "trio"
        if on_trio and item.get_closest_marker("both_loops") is None:
            item.add_marker(pytest.mark.wide)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pause the garbage collector while all tests are imported, where it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have the garbage collector look seldom, and never at what was imported: it took a tenth of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test the next steps belong to."""
    item.config.stash[_WATCHDOG].where = item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Bound each async test a little below pytest's timeout, whose alarm would leave the loop's runner waiting."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        config = pyfuncitem.config
        seconds = 0.8 * float(config.getoption("--timeout") or config.getini("timeout"))
        pyfuncitem.obj = bounded(pyfuncitem.obj, seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what a process measured that ran a part of the tests."""
    node.config.stash[_WATCHDOG].take(getattr(node, "workeroutput", {}).get("steps", {}))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail the run if the steps of an actor were too long and are judged; workers of xdist report them alone."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["steps"] = session.config.stash[_WATCHDOG].report()
        return
    judged = session.config.getoption("--judge-steps") and session.config.stash[_WATCHDOG].too_long()
    if judged and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the longest step of each actor."""
    watchdog = config.stash[_WATCHDOG]
    if not watchdog.longest:
        return
    terminalreporter.section(f"longest steps on the engine's loop (at most {1e3 * LIMIT_SECONDS:g} ms)")
    for name, longest in sorted(watchdog.longest.items()):
        mark = f"TOO LONG ({'; '.join(longest.too_long)}):" if longest.too_long else ""
        over = f", {longest.over.total()} of them longer than that" if longest.over else ""
        said = f"{1e3 * longest.seconds:6.2f} ms  {name}, {longest.steps.total()} steps{over}, in {longest.where}"
        terminalreporter.write_line(f"{mark}{said}", red=bool(mark))


@pytest.fixture(scope="module", params=[pytest.param("xla", marks=pytest.mark.wide), "cpu"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Return each implementation of the kernels that serves here."""
    named: Implementation = request.param
    if reason := operations_of(named).unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    return named


@pytest.fixture
def optimized() -> Iterator[None]:
    """Compile a test's programs as users have them, because they run for longer than the compiler does."""
    unoptimized = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", unoptimized)


@pytest.fixture(scope="session")
def watchdog(pytestconfig: pytest.Config) -> Watchdog:
    """Return the watchdog of this run, for steps that are measured without a loop."""
    return pytestconfig.stash[_WATCHDOG]


@pytest.fixture(scope="session")
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directories that all caches of tests share: downloads, kept for good, and this run's programs.

    The processes of a run share them too, so that a program is compiled once in a run.
    """
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # a worker's own is in that of the run
    programs = run / "programs"
    programs.mkdir(mode=0o700, exist_ok=True)
    return {"models": cache_dir("models"), "tests": cache_dir("tests"), "programs": programs}


@pytest.fixture(scope="session")
def own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return paths for the caches of tests, without a look at all earlier ones for each, as pytest's have."""
    base = tmp_path_factory.mktemp("caches")
    return (base / str(number) for number in count())


@pytest.fixture(scope="session", autouse=True)
def run_cache(shared_caches: dict[str, Path], own_directories: Iterator[Path]) -> Iterator[None]:
    """Give fixtures of the whole run a cache of their own, such as that of a kernel, which would use the user's."""
    with pytest.MonkeyPatch.context() as patch:
        _use_cache(patch, next(own_directories), shared_caches)
        yield


@pytest.fixture(scope="module", autouse=True)
def module_cache(shared_caches: dict[str, Path], own_directories: Iterator[Path]) -> Iterator[None]:
    """Give each module a cache of its own, so that its sessions find no prefixes of other modules."""
    with pytest.MonkeyPatch.context() as patch:
        _use_cache(patch, next(own_directories), shared_caches)
        yield


@pytest.fixture(autouse=True)
def own_cache(shared_caches: dict[str, Path], own_directories: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own, in which it finds other tests' programs but not their prefixes."""
    _use_cache(monkeypatch, next(own_directories), shared_caches)


def _use_cache(patch: pytest.MonkeyPatch, directory: Path, shared: dict[str, Path]) -> None:
    directory.mkdir(mode=0o700)
    for name, path in shared.items():
        (directory / name).symlink_to(path)
    patch.setenv("REKINDLE_CACHE", str(directory))


@pytest.fixture(scope="session")
def _compilations() -> list[str]:
    return listen()


@pytest.fixture
def compilations(_compilations: list[str]) -> list[str]:
    """Return a list that takes every tracing, lowering and compilation of this process from now on."""
    for thread in threading.enumerate():
        if thread.name == "rekindle-programs":  # of a session that may be closed, where it compiles to its end
            thread.join()
    jax.clear_caches()  # otherwise a small program that an earlier test compiled would not be compiled again
    _compilations.clear()
    return _compilations


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Make a tokenizer whose tokens are the 256 bytes, for sessions on the fake device."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Return the embedded default model's GGUF file. It is downloaded once per machine, into the cache directory."""
    return embedded_path()


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Checkpoint:
    return open_gguf(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Checkpoint) -> Tokenizer:
    assert smollm2.tokenizer is not None
    return smollm2.tokenizer


@pytest.fixture(scope="session")
def smollm2_goldens() -> list[dict[str, Any]]:
    """Return the entries of goldens/smollm2.json, which goldens/README.md describes."""
    goldens: list[dict[str, Any]] = json.loads((GOLDENS / "smollm2.json").read_text(encoding="utf-8"))
    return goldens


@pytest.fixture(scope="session")
def families() -> Path:
    """Return the directory of the tiny models, each of which has a golden.npz."""
    return GOLDENS / "families"
