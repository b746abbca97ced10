"""A restart reads the weights that an earlier session converted, and answers as it did."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle.core.store.weight_store import WeightCatalog
from rekindle.formats.checkpoints.checkpoint import LazyTensors
from rekindle.formats.weight_file import WeightFile
from tests.engine.small import SMALL
from tests.gguf_models.files import write_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
MATRICES = {f"blk.{layer}.{name}.weight" for layer in range(3) for name in ("attn_q", "attn_k", "ffn_gate", "ffn_down")}


@pytest.fixture
def model(families: Path, tmp_path: Path) -> Path:
    """Write a model that no other test has, in blocks: its weights are not kept yet, and its programs are known."""
    directory = tmp_path / "model"
    directory.mkdir()
    tensors = load_file(families / "llama-tied" / "model.safetensors")
    tensors["model.norm.weight"] = np.random.default_rng().normal(size=64).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_bytes((families / "llama-tied" / "config.json").read_bytes())
    return write_model(directory, tmp_path / "model.gguf", kinds=dict.fromkeys(MATRICES, "Q4_1"))


def answered(model: Path, **settings: Any) -> tuple[tuple[int, ...], int]:
    """Return the tokens of a session, and the bytes of kept weights."""
    options: Any = {**SMALL, "precompile": "lazy", **settings}
    with rekindle.open_sync(model, progress=False, **options) as session:
        answer = session.generate_sync(token_ids=PROMPT, max_tokens=8, ignore_eos=True)
        return answer.token_ids, session.restored.weight_bytes


def kept_of(model: Path) -> list[str]:
    from rekindle.core.store.directory import cache_dir

    return [entry.digest for entry in WeightCatalog(cache_dir("weights")).entries() if entry.model == str(model)]


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"weights": "dequantized", "quantize": "int8"}, marks=pytest.mark.wide)],
    ids=["packed", "int8"],
)
def test_a_restart_reads_no_tensor_of_the_file_and_answers_the_same(
    settings: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, none = answered(model, **settings, weight_cache_bytes=0)
    assert (none, kept_of(model)) == (0, [])
    assert answered(model, **settings) == (plain, 0)
    assert len(kept_of(model)) == 1
    reads = list[tuple[int, int]]()
    read = WeightFile.read

    def counted(self: WeightFile, begin: int, size: int) -> Any:
        reads.append((begin, size))
        return read(self, begin, size)

    monkeypatch.setattr(WeightFile, "read", counted)
    tokens, size = answered(model, **settings)
    assert tokens == plain
    assert size > 0
    assert [begin for begin, _ in reads] == [0], "the header alone"


def test_other_weights_under_the_same_name_are_converted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(model)
    assert len(kept_of(model)) == 1
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    asked, get = set[str](), LazyTensors.__getitem__

    def noted(self: LazyTensors, name: str) -> Any:
        asked.add(name)
        return get(self, name)

    monkeypatch.setattr(LazyTensors, "__getitem__", noted)
    assert answered(model)[1] == 0
    assert len(kept_of(model)) == 2
    assert "model.norm.weight" in asked


@pytest.mark.wide
def test_a_process_that_ends_without_a_close_keeps_small_weights_too(model: Path) -> None:
    code = """
import json, sys
import rekindle
session = rekindle.open_sync(sys.argv[1], progress=False, **json.loads(sys.argv[2]))
answer = session.generate_sync(token_ids=[3, 1, 4], max_tokens=2, ignore_eos=True)
print(json.dumps([answer.token_ids, session.restored.weight_bytes > 0]))
"""
    command = [sys.executable, "-c", code, str(model), json.dumps({**SMALL, "precompile": "lazy"})]
    runs = [json.loads(subprocess.check_output(command, text=True, cwd=Path(__file__).parents[2])) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert [is_kept for _, is_kept in runs] == [False, True]
