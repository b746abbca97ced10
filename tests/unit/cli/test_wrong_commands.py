"""A wrong line in the terminal exits with 2, and has the usage of its own command and what to write instead."""

import io
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from os import terminal_size
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rekindle.__main__ import main
from rekindle.cli.chat.wrapping import print_note
from rekindle.cli.generate.answer import print_stream
from rekindle.notebook import front_end

WRONG_LINES = [
    ("chat --temprature 0.5", "no option '--temprature'; did you mean --temperature?"),
    ("chat --max_tokens 5", "no option '--max_tokens'; did you mean --max-tokens?"),
    ("chat --max-new-tokens=5", "no option '--max-new-tokens=5'; here it is --max-tokens"),
    ("chat --temperature hot", "argument --temperature: invalid float value: 'hot'"),
    ("chat --load", "argument --load: expected one argument"),
    ("chat --chat-template nope.jinja", "cannot read the chat template 'nope.jinja'"),
    ("chat smollm2 extra", "unexpected argument 'extra': a text with spaces needs quotes"),
    ("generate hi --temprature 1", "no option '--temprature'; did you mean --temperature?"),
    ("generate --device gpu hi", "no option '--device'; jax chooses the device: set JAX_PLATFORMS"),
    ("generate hi --schema nope.json", "argument --schema: expected a JSON object or a file with one; 'nope.json'"),
    ("generate hi --schema {", "argument --schema: no valid JSON"),
    ("chat --cpu", "no option '--cpu'; jax chooses the device: set JAX_PLATFORMS"),
    ("cache", "list models, programs, snapshots, images, weights, conversations"),
    ("replicas", "stop replicas, after writing their cached prefixes to disk"),
    ("serve --prot 80", "no option '--prot'; did you mean --port?"),
    ("serve --max-model-len 5", "no option '--max-model-len'; here it is --max-context"),
    ("serve --tensor-parallel-size 2", "here it is --mesh, as in --mesh tensor=2"),
    ("serve --api_key x", "no option '--api_key'; did you mean --api-key?"),
    ("serve --port x", "argument --port: invalid int value: 'x'"),
    ("serve --pool-bytes lots", "expected a size such as 500M, 2G or 1.5GiB, got 'lots'"),
    ("serve --adapter x", "expected a name and a path, such as sql=adapters/sql, got 'x'"),
    ("info --dtype fp16", "argument --dtype: invalid choice: 'fp16'"),
    ("info a b", "unexpected argument 'b'"),
    ("info --mesh tensor", "expected an axis and its size, such as tensor=8, got 'tensor'"),
    ("models --contxt 3", "no option '--contxt'; did you mean --context?"),
    ("models --dtype int4", "argument --dtype: invalid choice: 'int4'"),
    ("cache ls --lng", "no option '--lng'; did you mean --long?"),
    ("cache lss", "invalid choice: 'lss'"),
    ("cache prune --max-bytes lots", "expected a size such as 500M, 2G or 1.5GiB, got 'lots'"),
    ("cache prune --max_bytes 1G", "no option '--max_bytes'; did you mean --max-bytes?"),
    ("cache clear everything", "invalid choice: 'everything'"),
    ("precompile --targt x", "no option '--targt'; did you mean --target?"),
    ("demo x", "unexpected argument 'x'"),
    ("batch in.jsonl", "the following arguments are required: OUT"),
    ("batch in.jsonl out.jsonl --nmae x", "no option '--nmae'; did you mean --name?"),
    ("replicas list", "invalid choice: 'list'"),
]
WRONG_COMMANDS = [
    ("caht", "no command 'caht'; did you mean chat?"),
    ("server", "no command 'server'; did you mean serve?"),
    ("run qwen3", "no command 'run'; did you mean chat?"),
    ("list", "did you mean models, or cache ls?"),
    ("pull qwen3", "a model of the hub is downloaded when it is opened: rekindle chat owner/name"),
    ("bench", "session.bench() measures the speed of this machine"),
    ("help", "did you mean --help?"),
    ("frobnicate", "the commands are chat, generate, batch, demo"),
    ("--versoin", "no option '--versoin'; did you mean --version?"),
]


def _refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(line))
    return capsys.readouterr().err


@pytest.mark.parametrize(("line", "message"), WRONG_LINES)
def test_a_wrong_argument_has_the_usage_of_its_command_and_a_cure(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    command = " ".join(
        words[:2] if words[0] == "cache" and words[1:2] and words[1] in ("ls", "prune", "clear") else words[:1]
    )
    text = _refused(line, capsys)
    assert text.startswith(f"usage: rekindle {command} ")
    assert message in text


def test_a_schema_of_another_form_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.json").write_text("[1]")
    text = _refused(f"generate hi --schema {shlex.quote(str(tmp_path / 'list.json'))}", capsys)
    assert "argument --schema: expected a JSON object, got '[1]'" in text


@pytest.mark.parametrize(("line", "message"), WRONG_COMMANDS)
def test_a_wrong_command_has_a_cure(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in _refused(line, capsys)


class Pieces:
    """A stream of a text by characters."""

    def __init__(self, text: str):
        self.handle: Any = self
        self._pieces = (SimpleNamespace(text=character) for character in text)

    def __iter__(self) -> Iterator[Any]:
        return self._pieces

    def result(self) -> None:
        return None


class Terminal(io.StringIO):
    """A terminal of 40 columns."""

    def isatty(self) -> bool:
        return True


def test_a_message_is_broken_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: terminal_size((40, 24)))
    text = "rekindle: no model 'x'. Names of Ollama are not read here"
    for stream, expected in (
        (Terminal(), "rekindle: no model 'x'. Names of Ollama\nare not read here\n"),
        (io.StringIO(), f"{text}\n"),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        print_note(text)
        assert stream.getvalue() == expected
        front_end.note(text)
        assert stream.getvalue() == expected * 2


def test_an_answer_is_broken_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: terminal_size((40, 24)))
    words = " ".join(["word"] * 20)
    for output, lines in ((Terminal(), 3), (io.StringIO(), 1)):
        monkeypatch.setattr(sys, "stdout", output)
        stream: Any = Pieces(words)
        print_stream(stream)
        assert len(output.getvalue().splitlines()) == lines
        assert output.getvalue().split() == words.split()


def test_a_warning_of_a_command_is_one_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["rekindle", "--version"])
    with pytest.raises(SystemExit):
        main()
    warnings.showwarning("no pages", RuntimeWarning, "there.py", 8)
    assert capsys.readouterr().err == "rekindle: no pages\n"


def test_json_that_is_too_deep_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep.json"
    file.write_text('{"a": ' + "[" * 100_000)
    with pytest.raises(SystemExit, match="2"):
        main(["generate", "hi", "--schema", str(file)])
    assert "argument --schema: no valid JSON" in capsys.readouterr().err
    assert main(["chat", "fake", "--load", str(file)]) == 1
    assert "has no conversation" in " ".join(capsys.readouterr().err.split())
