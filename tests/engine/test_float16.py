"""A session with weights and pages of float16 answers as the reference does, and tells what it computes with."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from tests.engine.settings_child import opened

REASON = "xla kernels (weights must be float32 or bfloat16)"


@pytest.mark.parametrize(
    "family",
    ["qwen3", "gemma2", "deepseek-v3", "falcon-h1-norm"],
)
@pytest.mark.wide
def test_its_greedy_tokens_are_those_of_the_reference(family: str, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    prompt, expected = golden["greedy_prompt"].tolist(), golden["greedy_new"].tolist()
    with opened(families / family, dtype="float16") as session:
        result = session.generate_sync(token_ids=prompt, max_tokens=len(expected), ignore_eos=True)
        assert list(result.token_ids) == expected
        assert session.stats.kernels == REASON
        assert repr(session.stats).endswith(f"\n{REASON}")
        assert "float16" in repr(session)


def test_opening_tells_kernels_other_than_those_of_the_platform_once(
    families: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "rekindle"):
        rekindle.open_sync(families / "qwen3", dtype="float16", precompile="lazy", disk_cache_bytes=0).close_sync()
    told = [record.getMessage() for record in caplog.records if "kernels" in record.getMessage()]
    assert told == [f"{families / 'qwen3'}: {REASON}, float16"]


@pytest.mark.wide
def test_a_session_opens_without_the_triton_lowering(families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open one in a process whose JAX lacks it, by the choice for its platform."""
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    with opened(families / "qwen3") as session:
        assert len(session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, ignore_eos=True).token_ids) == 4


def test_numbers_beyond_the_range_are_counted_and_told_once(families: Path, tmp_path: Path) -> None:
    source, name = families / "qwen3", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(source / "model.safetensors")
    tensors[name] = tensors[name].copy()
    tensors[name][0, :3] = [65504, -65536, 1e6]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.warns(RuntimeWarning) as warnings:
        rekindle.open_sync(
            tmp_path, dtype="float16", precompile="lazy", progress=False, disk_cache_bytes=0
        ).close_sync()
    told = [str(warning.message) for warning in warnings]
    assert told == [
        "2 numbers of the weights left the range of float16, which ends at 65,504, and became infinite: "
        'dtype="float32" has room for them'
    ]
