"""The tests of others run in a copy, with a stand-in for their server, and failures are counted by reason."""

import sys
from pathlib import Path

import pytest

from tests.peers import vllm_files
from tests.peers.__main__ import HOW, main, table
from tests.peers.suites import SUITES

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


def test_each_file_that_starts_a_server_runs_or_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """Write the listed files of a checkout, and two more: one starts a server, and has no entry."""
    names = [*vllm_files.RUN, *vllm_files.OTHERS, *(name for each in vllm_files.LEFT_OUT.values() for name in each)]
    assert len(names) == len(set(names))
    assert all(reason.strip() for reason in vllm_files.LEFT_OUT)
    for name in (*names, "new/test_server.py", "new/test_unit.py"):
        path = tmp_path / vllm_files.ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "new/test_unit.py" else "from tests.utils import RemoteOpenAIServer")
    assert list(SUITES["vllm"].unlisted(tmp_path)) == ["new/test_server.py"]
    assert {test.removeprefix(f"{vllm_files.ROOT}/") for test in SUITES["vllm"].tests} < set(names)


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
