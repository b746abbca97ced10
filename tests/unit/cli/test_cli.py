"""The command line writes text to stdout and all else to stderr, and has exit codes that scripts can use."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.__main__ import _parser, main
from rekindle.cli.demo import BATCH, QUESTIONS
from rekindle.cli.units import broken, columns
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.lora import LowRank
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE
from tests.unit.command_line import fake_opening, patient_model, running, writing_model
from tests.unit.lora import saved
from tests.vision import SMOLVLM
from tests.waiting import PATIENCE, until_blocking


@pytest.fixture(scope="module")
def model(families: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return writing_model(families, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def patient(families: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return patient_model(families, tmp_path_factory.mktemp("models") / "patient")


@pytest.fixture
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def _fake_device(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer) -> None:
    monkeypatch.setattr(rekindle, "open_sync", fake_opening(byte_tokenizer))


@pytest.mark.wide
def test_generate_streams_text_to_stdout_and_the_rest_to_stderr(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-m", model, "Hello", "--max-tokens", "7", "--ignore-eos"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out) > 1
    assert captured.out.endswith("\n")
    (figures,) = captured.err.splitlines()
    assert figures.startswith("11 prompt tokens, 7 generated in ")


@pytest.mark.usefixtures("_fake_device")
def test_json_reports_what_would_have_been_streamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = ["--max-tokens", "7", "--temperature", "0.9", "--top-k", "40", "--seed", "5"]
    assert main(["generate", "--raw", "-m", "fake", "Hello", *sampling]) == 0
    streamed = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert main(["generate", "--raw", "-m", "fake", "-", *sampling, "--json", "--quiet"]) == 0
    quiet = capsys.readouterr()
    report = json.loads(quiet.out)
    assert quiet.err == ""
    assert (report["prompt_tokens"], len(report["token_ids"]), report["finish_reason"]) == (5, 7, "length")
    assert streamed == report["text"] + "\n"


@pytest.mark.usefixtures("_fake_device")
def test_an_adapter_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = np.ones((1, 1), np.float32)
    directory = saved(tmp_path, {"model.layers.0.self_attn.q_proj": LowRank(one, one, 1.0)})
    used: list[Any] = []
    call = Session.submit

    def noted(session: Session, prompt: Any, **options: Any) -> Any:
        used.append(options.get("adapter"))
        return call(session, prompt, **options)

    monkeypatch.setattr(Session, "submit", noted)
    assert main(["generate", "--adapter", str(directory), "--quiet", "-m", "fake", "Hello"]) == 0
    assert main(["generate", "--quiet", "-m", "fake", "Hello"]) == 0
    assert used == ["adapter", None]
    assert main(["generate", "--adapter", str(tmp_path / "nowhere"), "--quiet", "-m", "fake", "Hello"]) == 1
    assert "no adapter_config.json" in capsys.readouterr().err


@pytest.mark.usefixtures("_fake_device")
def test_the_template_is_applied_and_stop_tokens_stop(capsys: pytest.CaptureFixture[str]) -> None:
    stops = [word for token in range(VOCAB_SIZE) for word in ("--stop-token-id", str(token))]
    assert main(["generate", *stops, "--json", "--quiet", "-m", "fake", "Hello"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["prompt_tokens"] == len("<user>Hello")
    assert (len(report["token_ids"]), report["finish_reason"]) == (1, "stop")


@pytest.mark.usefixtures("_fake_device")
def test_demo_says_what_it_does_and_ends_with_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "fake"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Rekindle {rekindle.__version__}")
    assert [output.count(f"\n> {question}\n") for question in QUESTIONS + BATCH] == [1] * 6
    assert re.search(r"^Ready after \d+\.\d s\.$", output, re.MULTILINE)
    *_, last, _, following = output.splitlines()
    assert last.startswith("Measured: the last answer's 64 tokens at ")
    assert following.startswith("Next: ")
    assert " chat, or rekindle.open() in a notebook." in following
    assert "256 together at " in last
    assert last.endswith(" 0 programs loaded, 0 compiled.")


@pytest.mark.usefixtures("_own_cache")
def test_info_of_a_model_reads_no_weights(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("a tensor was looked up")

    monkeypatch.setattr("rekindle.formats.checkpoints.checkpoint.LazyTensors.__getitem__", loaded)
    assert main(["info", model, "--dtype", "bfloat16"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert rows["cache"] == f"{tmp_path / 'cache'}, 0 files, 0 B"
    assert rows["parameters"] == "162,240"
    assert rows["weights"] == "325 kB", "norms are float32"
    assert rows["chat"] == "has a template"
    assert rows["tools"].startswith("told in the system message")
    assert "2 </s>" in rows["end"]


@pytest.mark.usefixtures("_own_cache")
def test_info_tells_the_dtype_of_pages_and_their_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for options in ([], ["--kv-dtype", "int8"]):
        assert main(["info", model, *options]) == 0
        rows = dict(line.split("  ", maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
        sizes.append(rows["keys, values"].strip())
    assert sizes[0].endswith("a token of context")
    assert sizes[1].endswith("a token of context, int8")
    assert sizes[0].split()[0] != sizes[1].split()[0]


@pytest.mark.usefixtures("_own_cache")
def test_info_of_a_model_names_its_vision_tower(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(SMOLVLM)]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert rows["images"] == "2 layers, hidden 32, 25,856 parameters; 4 tokens for 16 patches of 8 pixels"


@pytest.mark.usefixtures("_own_cache")
def test_info_of_a_model_names_its_features_and_streams(families: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(families / "gemma3n")]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert rows["sizes"] == "hidden 28, feed-forward 32 and 36"
    assert rows["features"] == "5 of each token for each layer"
    assert rows["streams"] == "3 residual streams, of which each layer computes with one"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "-m", "/nowhere/at/all", "Hello"], "no model '/nowhere/at/all'"),
        (["generate", "-m", "/nowhere/at/all", "Hello", "--top-p", "1.5"], "top_p must be"),
        (["generate", "-m", "/nowhere/at/all", ""], "the prompt is empty"),
        (["info", "/nowhere/at/all"], "no model '/nowhere/at/all'"),
    ],
)
@pytest.mark.usefixtures("_own_cache")
def test_an_error_is_a_note_on_stderr(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert f"\nrekindle: {message}" in f"\n{capsys.readouterr().err}"


@pytest.mark.parametrize("arguments", [[], ["serve", "--port"], ["generate", "p", "--max-tokens", "many"], ["genrate"]])
def test_what_argparse_cannot_read_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert "usage: rekindle" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"rekindle {rekindle.__version__}\n"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.usefixtures("interruptible")
def test_interrupting_a_generation_exits_130_without_a_traceback(patient: str) -> None:
    with running("generate", "-m", patient, "Hello", "--max-tokens", "16000", "--ignore-eos") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert "generated" not in error
    assert first


@pytest.mark.wide
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.usefixtures("interruptible")
def test_interrupting_the_compiler_does_not_wait_for_it(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))  # no program is stored there yet
    with running("generate", "-m", str(smollm2_path), "Hello") as process:
        until_blocking((tmp_path / "programs").exists, "programs are compiled")
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in error
    stored = [entry.parts["program"] for entry in ProgramCatalog(tmp_path / "programs").entries()]
    assert not [name for name in stored if name.startswith("step of")], "it has ended before the step was compiled"


@pytest.mark.wide
@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_reader_that_goes_away_is_no_error_to_speak_of(patient: str) -> None:
    with running("generate", "-m", patient, "Hello", "--max-tokens", "16000", "--ignore-eos", "--quiet") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr.read() == ""


def test_lm_eval_that_is_not_installed_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["lm-eval", "--model", "rekindle", "--tasks", "arc_easy"]) == 1
    assert "install it: pip install 'rekindle-llm[lm-eval]'" in capsys.readouterr().err


def test_the_help_of_lm_eval_needs_no_harness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["lm-eval", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: rekindle lm-eval --model rekindle")


@pytest.mark.wide
def test_help_has_a_summary_and_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    count = 0
    for name in _parser().names:
        if name == "lm-eval":
            continue
        with pytest.raises(SystemExit):
            main([name, "--help"])
        text = capsys.readouterr().out
        assert re.search(r"^[A-Z][^\n]*(\n\w[^\n]*)*\.$", text, re.MULTILINE), name
        for line in text.partition("examples:")[2].split("\n"):
            if line.strip():
                words = shlex.split(line.strip().rpartition("| ")[2])[1:]
                _parser(words[0]).parse_args(words)
                count += 1
    assert count > 20


def test_descriptions_fit_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for name in ("", *_parser().names):
        with nullcontext() if name == "lm-eval" else pytest.raises(SystemExit):
            main([name, "--help"] if name else ["--help"])
        descriptions = re.findall(r"^[A-Z`].*", capsys.readouterr().out, re.MULTILINE)
        assert descriptions
        assert max(map(len, descriptions)) <= 40, name


def test_no_command_prints_the_help_and_a_misspelt_one_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "chat with a model" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["genrate"])
    assert capsys.readouterr().err.endswith("rekindle: error: no command 'genrate'; did you mean generate?\n")


COMMAND = """\
import runpy, sys
sys.argv = ["rekindle", *sys.argv[1:]]
try:
    runpy.run_module("rekindle", run_name="__main__")
finally:
    print(sorted({"jax", "ml_dtypes", "numpy"} & set(sys.modules)), len(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["genrate"], 2),
        (["chat", "--help"], 0),
        (["chat", "--temprature", "1"], 2),
        (["chat", "--load", "nope.json"], 1),
        (["generate", "--max-tokens", "x"], 2),
        *(
            pytest.param([name, "--help"], 0, marks=pytest.mark.wide)
            for name in ("demo", "models", "info", "serve", "precompile", "cache", "follow", "replicas")
        ),
        (["serve", "--prot", "80"], 2),
        (["cache", "prune", "--max_bytes", "1G"], 2),
    ],
)
def test_help_and_wrong_arguments_do_without_jax_and_numpy(arguments: list[str], status: int) -> None:
    process = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True)
    assert process.returncode == status, process.stderr
    imported, count = process.stderr.splitlines()[-1].rsplit(maxsplit=1)
    assert imported == "[]"
    assert int(count) < 270  # jax has 700, numpy 130


@pytest.mark.wide
@pytest.mark.parametrize("program", ["rekindle", "/usr/bin/inspect"])
def test_a_process_of_the_command_line_has_the_public_names(program: str) -> None:
    code = f"import sys; sys.argv = [{program!r}]; import rekindle; assert 'jax' not in sys.modules; rekindle.Session; "
    code += "print(sorted(name for name in rekindle.__all__ if not hasattr(rekindle, name)), 'jax' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[] True\n"


def test_a_table_fits_a_narrow_terminal_and_is_whole_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("Qwen3", "0.6B 1.7B [4B]", "18.5 GB"), ("A longer name", "7B", "")]
    whole = ["  Qwen3          0.6B 1.7B [4B]  18.5 GB", "  A longer name  7B"]
    monkeypatch.setenv("COLUMNS", "24")
    assert columns(rows) == whole
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    folded = ["  Qwen3", "    0.6B 1.7B [4B]", "    18.5 GB", "  A longer name", "    7B"]
    assert columns(rows) == folded
    assert broken("one two three four five", "    ", "  1 ") == ["  1 one two three four", "    five"]
    monkeypatch.setenv("COLUMNS", "80")
    assert columns(rows) == whole
    assert columns([]) == []
