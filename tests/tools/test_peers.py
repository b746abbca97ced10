"""The tests of others run in a copy, with a stand-in for their server, and failures are counted by reason."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.peers import causes, llama_files, vllm_files
from tests.peers.__main__ import HOW, main, table
from tests.peers.causes import Causes, cause_of
from tests.peers.suites import SUITES, Copied

VLLM = """
import torch
from tests.utils import RemoteOpenAIServer
from vllm.tokenizers import get_tokenizer
from vllm.exceptions import VLLMValidationError

MODEL_NAME = "owner/name"


def test_passes():
    with RemoteOpenAIServer(MODEL_NAME, ["--argument"]) as server:
        assert (server.model, server.url_for("v1", "x")) == ("mine", "http://127.0.0.1:9/v1/x")
    assert issubclass(VLLMValidationError, Exception)


def test_fails():
    assert 1234 == 5


def test_fails_too():
    assert 4321 == 5


def test_hangs():
    while True:
        pass
"""


@pytest.mark.wide
def test_a_suite_runs_in_a_copy_and_its_failures_are_counted_by_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tests" / "entrypoints" / "test_mine.py"
    path.parent.mkdir(parents=True)
    path.write_text(VLLM, encoding="utf-8")
    (path.parent / "__init__.py").touch()
    arguments = ["vllm", str(tmp_path), "http://127.0.0.1:9", "--model", "mine", "--seconds", "0.5"]
    assert main([*arguments, "--python", sys.executable, "tests/entrypoints/test_mine.py"]) == 0
    output = capfd.readouterr().out
    assert "vLLM at 127.0.0.1:9: 1 passed, 3 failed" in output
    assert "   2  AssertionError: assert N == 5\n      test_fails, test_fails_too" in output
    assert "   1  TimeoutError: the test took too long\n      test_hangs" in output
    assert path.read_text(encoding="utf-8") == VLLM


@pytest.mark.parametrize(
    ("files", "suite", "start"),
    [
        (vllm_files, "vllm", "from tests.utils import RemoteOpenAIServer"),
        (llama_files, "llama.cpp", "server = ServerPreset.tinyllama2()"),
    ],
    ids=["vllm", "llama.cpp"],
)
def test_each_file_that_starts_a_server_runs_or_is_left_out_with_its_reason(
    tmp_path: Path, files: ModuleType, suite: str, start: str
) -> None:
    """Write the listed files of a checkout, and two more: one starts a server, and has no entry."""
    run = [*files.RUN, *getattr(files, "OTHERS", ()), *files.PICTURES, *files.KEYS]
    names = [*run, *(name for each in files.LEFT_OUT.values() for name in each)]
    assert len(names) == len(set(names))
    assert all(reason.strip() for reason in files.LEFT_OUT)
    for name in (*names, "test_new_server.py", "test_new_unit.py"):
        path = tmp_path / files.ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "test_new_unit.py" else start)
    assert list(SUITES[suite].unlisted(tmp_path)) == ["test_new_server.py"]
    of_all = [test for name, each in SUITES.items() if name.startswith(suite) for test in each.tests]
    prefix = f"{files.ROOT}/" if suite == "vllm" else "unit/"
    assert sorted(test.removeprefix(prefix) for test in of_all) == sorted(run), "each runs in one suite"


def test_files_of_another_version_are_left_out_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_basic.py").touch()
    assert list(SUITES["llama.cpp"].present(Copied(tmp_path, tmp_path))) == ["unit/test_basic.py"]


@pytest.mark.parametrize(
    ("entries", "test", "reason", "cause"),
    [
        (
            causes.VLLM,
            "test_x",
            "400: min_x cannot be served: it is unknown, and it might change the answer",
            "a field with",
        ),
        (causes.LLAMA, "test_x", "404 POST /props: no such route", "the route"),
        (
            causes.LLAMA,
            "test_weather[a-b]",
            "AssertionError: Expected 1 tool call in {'content': ''}",
            "calls of tools",
        ),
        (causes.VLLM, "test_x", "InternalServerError: Error code: 500 - internal", None),
        (causes.LLAMA, "test_x", "AssertionError: assert 500 == 200", None),
    ],
)
def test_a_failure_has_the_cause_of_its_entry_and_a_fault_has_none(
    entries: Causes, test: str, reason: str, cause: str | None
) -> None:
    entry = cause_of(entries, test, reason)
    assert entry is None if cause is None else cause in str(entry)


def test_failures_with_a_cause_are_counted_before_the_others() -> None:
    reasons = ["404 GET /slots: no such route", "404 GET /props: no such route", "assert 500 == 200"]
    outcomes = [{"test": f"a::t{place}", "outcome": "failed", "reason": each} for place, each in enumerate(reasons)]
    assert table(SUITES["llama.cpp"], "here", outcomes).splitlines()[1:] == [
        "   2  not claimed: the route",
        "without a cause in tests/peers/causes.py:",
        "   1  assert 500 == 200",
        "      t2",
    ]


def test_without_arguments_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == f"{HOW}\n"


def test_the_most_frequent_reasons_come_first_with_a_few_names() -> None:
    outcomes = [{"test": f"a::t{place}", "outcome": "failed", "reason": "often"} for place in range(6)]
    outcomes = [{"test": "a::x", "outcome": "failed", "reason": "once"}, *outcomes]
    assert table(SUITES["llama.cpp"], "here", outcomes).splitlines()[1:] == [
        "   6  often",
        "      t0, t1, t2, t3 and 2 more",
        "   1  once",
        "      x",
    ]
