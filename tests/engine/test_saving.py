"""A model saved by a session opens as a session with the same logits, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import rekindle
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from tests.engine.small import SMALL
from tests.unit.lora import random_parts, saved

pytestmark = pytest.mark.wide
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def session(families: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(families / "qwen3", quantize="int4", progress=False, precompile="lazy", **SMALL) as session:
        yield session


def answer(session: rekindle.Session) -> rekindle.Generation:
    return session.generate_sync(token_ids=PROMPT, max_tokens=24, ignore_eos=True, logprobs=5)


def test_a_file_gives_the_same_logits(session: rekindle.Session, tmp_path: Path) -> None:
    model = session.save_quantized_sync(tmp_path / "model.gguf", progress=False)
    assert (model.path, model.format) == (tmp_path / "model.gguf", "gguf")
    assert 0 < model.bytes_after < model.bytes_before / 4
    with rekindle.open_sync(model.path, progress=False, precompile="lazy", **SMALL) as again:
        assert again.settings.weights == "packed"
        assert answer(again).logprobs == answer(session).logprobs
        with pytest.raises(rekindle.InvalidRequest, match="was opened without it"):
            again.save_quantized_sync(tmp_path / "other.gguf")


def test_a_directory_gives_the_same_codes(session: rekindle.Session, tmp_path: Path) -> None:
    model = session.save_quantized_sync(tmp_path / "model", progress=False)
    with rekindle.open_sync(model.path, weights="packed", progress=False, precompile="lazy", **SMALL) as again:
        assert again.settings.weights == "packed"
        ours, theirs = answer(session), answer(again)
    assert ours.logprobs is not None
    assert theirs.logprobs is not None
    assert theirs.logprobs[0].top[0].logprob == pytest.approx(ours.logprobs[0].top[0].logprob, abs=0.1)


@pytest.mark.anyio
async def test_saving_while_requests_run(session: rekindle.Session, tmp_path: Path) -> None:
    expected = answer(session).token_ids
    handle = session.submit(token_ids=PROMPT, max_tokens=24, ignore_eos=True)
    await session.save_quantized(tmp_path / "model.gguf", progress=False)
    assert (await handle).token_ids == expected
    assert "rekindle.kinds" in open_gguf_file(tmp_path / "model.gguf").metadata
    with pytest.raises(rekindle.StorageError, match="exists"):
        await session.save_quantized(tmp_path / "model.gguf")
    with pytest.raises(rekindle.ConfigError, match="format must be one of gguf, safetensors, got 'onnx'"):
        await session.save_quantized(tmp_path / "model", format="onnx")  # type: ignore[arg-type]


def test_adapters_and_new_weights_are_not_saved(session: rekindle.Session, families: Path, tmp_path: Path) -> None:
    parts = random_parts(session._engine.facts.model)
    session.add_adapter_sync("sql", saved(tmp_path / "adapter", parts))
    with pytest.raises(rekindle.InvalidRequest, match=r"this session has sql: remove them by remove_adapter\(\)"):
        session.save_quantized_sync(tmp_path / "model.gguf")
    session.remove_adapter_sync("sql")
    session.update_weights_sync(families / "qwen3")
    with pytest.raises(rekindle.InvalidRequest, match="update_weights has replaced its weights"):
        session.save_quantized_sync(tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
