"""`rekindle quantize` writes a model and says how to open it."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from rekindle.__main__ import main
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.gguf_models.files import write_model


@pytest.mark.parametrize(("bits", "kinds"), [("4", ("Q4_0", "Q8_0")), ("8", ("Q8_0",))])
def test_a_file_is_written_with_a_summary(
    bits: str, kinds: tuple[str, ...], families: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    assert main(["quantize", str(families / "qwen3"), str(path), "--bits", bits, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = f"{path.stat().st_size / 1000:.0f} kB"
    assert lines[0] == f"model    {families / 'qwen3'}, 932 kB"
    assert re.fullmatch(rf"written  {re.escape(str(path))}, {size} \(\d\d\.\d%\), in .* m?s", lines[1])
    assert lines[2].startswith("codes    ")
    assert lines[3] == f"open     rekindle chat {path}"
    assert open_checkpoint(path).formats == kinds


def test_a_directory_is_written_by_the_name_of_the_path(
    families: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new"
    assert main(["quantize", str(families / "qwen3"), str(path), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "int8" not in out  # the embedding and the head have none
    assert out.endswith(f'open     rekindle.open("{path}", weights="packed")\n')
    assert open_checkpoint(path).formats


def test_what_is_wrong_is_told_before_anything_is_written(
    families: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized = write_model(families / "qwen3", tmp_path / "q8.gguf", None, {"blk.0.attn_q.weight": "Q8_0"})
    for arguments, message in (
        ([str(quantized), "new.gguf"], "is quantized already (Q8_0)"),
        ([str(families / "opt"), "new.gguf"], "llama.cpp has no architecture for the family opt"),
        ([str(families / "phi3-partial"), "new.gguf"], "codes are made in groups of 32 numbers"),
        ([str(families / "qwen3"), "new.gguf", "--format", "safetensors"], "is a directory"),
        ([str(families / "qwen3"), "new", "--format", "gguf"], "whose name ends in .gguf"),
        (["auto", "new.gguf"], "takes the name or the path of a model"),
    ):
        assert main(["quantize", arguments[0], str(tmp_path / arguments[1]), *arguments[2:], "--quiet"]) == 1
        assert message in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["q8.gguf"]
    assert main(["quantize", str(quantized), str(tmp_path / "new.gguf"), "--requantize", "--quiet"]) == 0


@pytest.mark.parametrize("columns", [40, 80])
def test_lines_fit_a_terminal(
    columns: int,
    families: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(families / "qwen3", "m")
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["quantize", "m", "q.gguf", "--quiet"]) == 0
    main(["quantize", "m", "q.gguf", "--quiet"])
    captured = capsys.readouterr()
    lines = captured.out.replace(str(tmp_path), "").splitlines()
    assert "model    m, 932 kB" in lines
    assert max(map(len, lines)) <= columns
    assert "exists: choose another name" in " ".join(captured.err.split())
