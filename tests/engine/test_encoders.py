"""Encoders have the vectors of sentence-transformers, alone and in any batch."""

import json
import os
import shutil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest

import rekindle
from rekindle.core.models.distances import slopes_of
from rekindle.scoring import embedding
from rekindle.scoring.pooling import pooled
from rekindle.settings.engine import SettingsOptions
from tests import jina_bert
from tests.engine.restart_child import start, told
from tests.gguf_models.encoders import write_encoder

MODELS = Path(__file__).parents[1] / "goldens" / "encoders"
FEW: SettingsOptions = {
    "page_size": 16,
    "max_running": 4,
    "max_prefill_tokens": 160,
    "prefill_buckets": (160,),
    "decode_buckets": (4,),
    "precompile": "lazy",
    "disk_cache_bytes": 0,
}
FAMILIES = pytest.mark.parametrize(
    "family",
    [
        "bert",
        *(
            pytest.param(name, marks=pytest.mark.wide)
            for name in ("roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "electra", "nomic-bert")
        ),
    ],
)


def golden(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the texts of a model with their tokens, and its numbers."""
    facts: dict[str, Any] = json.loads((MODELS / name / "golden.json").read_text(encoding="utf-8"))
    return facts, dict(np.load(MODELS / name / "golden.npz"))


def opened(path: Path, **settings: Unpack[SettingsOptions]) -> rekindle.Session:
    """Open an encoder with few programs."""
    return rekindle.open_sync(path, progress=False, **(FEW | settings))


def assert_same(vectors: Any, expected: Any) -> None:
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@FAMILIES
def test_vectors_are_those_of_sentence_transformers(family: str) -> None:
    facts, numbers = golden(f"{family}-mean")
    texts, expected = facts["texts"], numbers["vectors"]
    with opened(MODELS / f"{family}-mean") as session:
        assert session.tokenizer is not None
        assert [session.tokenizer.encode(text) for text in texts] == facts["ids"]
        together = session.embed_sync(texts)
        assert_same(together, expected)
        alone = np.stack([session.embed_sync(text) for text in texts])
        assert_same(alone, expected)
        if family != "mpnet":  # whose summands of scores have no native kernel
            assert np.array_equal(alone, together), "a vector has the same bits in any batch"
        assert_same(session.embed_sync(token_ids=facts["ids"][:3]), expected[:3])
        assert session.stats.unexpected_compilations == 0


def test_a_query_has_its_prompt_and_lengths_reach_the_limit() -> None:
    with opened(MODELS / "bert-mean") as session:
        query = session.embed_sync("a cat", instruction="query")
        assert np.array_equal(query, session.embed_sync("query: a cat"))
        assert np.array_equal(session.embed_sync("a " * 126), session.embed_sync("a " * 400))
        assert session.count_tokens("a " * 400) == 128
        longest = session.embed_sync(token_ids=[2] * 160)
        assert np.isfinite(longest).all()
        with pytest.raises(rekindle.PromptTooLong, match="at most 160 fit"):
            session.embed_sync(token_ids=[2] * 161)


def test_the_first_token_is_the_vector_of_a_directory_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(MODELS / "bert-mean", path)
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with opened(MODELS / "bert-mean") as session, opened(path) as other:
        assert np.array_equal(session.embed_sync("a cat", pooling="cls"), other.embed_sync("a cat"))
        assert not np.array_equal(session.embed_sync("a cat"), other.embed_sync("a cat"))


def embed_and_tell(cache: Path, connection: Connection) -> None:
    """Tell the vectors of texts and the number of compilations, in a process of its own."""
    os.environ["REKINDLE_CACHE"] = str(cache)
    facts, _ = golden("bert-mean")
    with opened(MODELS / "bert-mean", disk_cache_bytes=1 << 28, precompile="all") as session:
        vectors = session.embed_sync(facts["texts"])
        connection.send((vectors.tobytes(), session.stats.compilations))
    connection.close()


@pytest.mark.wide
def test_a_restart_compiles_nothing_and_gives_the_same_bits(tmp_path: Path) -> None:
    first, second = (next(told(start(embed_and_tell, tmp_path)[1])) for _ in range(2))
    assert first[1] > 0
    assert second == (first[0], 0)


def test_an_encoder_has_no_programs_for_decoding_and_tells_of_cut_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    path = MODELS / "bert-mean"
    with opened(path) as session:
        assert [(each.prefill_tokens, each.decode_rows) for each in session._engine.facts.limits.all_buckets()] == [
            (160, 0)
        ]
        notes: list[str] = []
        monkeypatch.setattr(session._requests._notes, "_write", notes.append)
        session.embed_sync("word " * 126)
        assert not notes, "nothing is cut"
        for _ in range(2):
            session.embed_sync(["a", "word " * 127])
        assert [note.partition(",")[0] for note in notes] == ["Some texts have more than 128 tokens"]
        assert session.embed_sync("").shape == session.embed_sync("x" * 100_000).shape == (32,)
        for call in (session.generate_sync, session.prefix_sync, session.perplexity_sync):
            with pytest.raises(rekindle.InvalidRequest, match=r"reads texts in both directions, .* use embed\(\)"):
                call("a")
        with pytest.raises(rekindle.InvalidRequest, match="no head that classifies texts: open an encoder with Seq"):
            session.classify_sync("a")
        with pytest.raises(rekindle.InvalidRequest, match="no head over masked words: open an encoder with MaskedLM"):
            session.fill_sync("a")
        with pytest.raises(rekindle.InvalidRequest, match="dimensions must be an integer from 1 to 32, got 33"):
            session.embed_sync("a", dimensions=33)
        with pytest.raises(rekindle.InvalidBatch, match="prompt 1: the prompt has a lone surrogate"):
            session.embed_sync(["a", "\ud800"])


def test_poolings_of_all_tokens_and_of_texts_without_their_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_pooling(name: str, **settings: Any) -> Path:
        path = tmp_path / name
        shutil.copytree(MODELS / "bert-mean", path)
        (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
        return path

    own = opened(with_pooling("prompt", pooling_mode_mean_tokens=True, include_prompt=False))
    other = opened(with_pooling("max", pooling_mode_max_tokens=True))
    with opened(MODELS / "bert-mean") as session, own, other:

        def embed(text: str, pooling: Any) -> Any:
            return session.embed_sync(text, pooling=pooling, normalize=False).astype(np.float64)

        first, last, one = (embed("a", each) for each in ("cls", "last", "mean"))
        middle = 3 * one - first - last  # of [CLS] a [SEP]
        states = np.stack([first, middle, last])
        for pooling, expected in (
            ("max", states.max(0)),
            ("mean_sqrt_len", states.sum(0) / np.sqrt(3)),
            ("weightedmean", np.array([1, 2, 3]) @ states / 6),
        ):
            np.testing.assert_allclose(embed("a", pooling), expected, rtol=0, atol=1e-5)
        assert np.array_equal(other.embed_sync("a cat"), session.embed_sync("a cat", pooling="max"))
        assert session.tokenizer is not None
        ids = session.tokenizer.encode("query: a cat")
        first_of_text = len(session.tokenizer.encode("query: ")) - 1
        assert session.tokenizer.decode(ids[first_of_text:]) == "a cat"
        seen: list[Any] = []

        def noted(*values: Any) -> Any:
            seen.append(values)
            return pooled(*values)

        monkeypatch.setattr(embedding, "pooled", noted)
        vector = own.embed_sync("a cat", instruction="query", normalize=False)
        ((states, pooling, skipped),) = seen
        assert (len(states), pooling, skipped) == (len(ids), "mean", first_of_text)
        np.testing.assert_allclose(vector, states[first_of_text:].mean(0), rtol=0, atol=1e-6)
        np.testing.assert_allclose(embed("query: a cat", "mean"), states.mean(0), rtol=0, atol=1e-6)
        assert np.array_equal(own.embed_sync("a cat"), session.embed_sync("a cat"))


def test_early_directories_have_the_model_in_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(MODELS / "bert-mean", path / "0_Transformer")
    (path / "0_Transformer" / "1_Pooling").rename(path / "1_Pooling")
    modules = json.loads((path / "0_Transformer" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (path / "modules.json").write_text(json.dumps(modules))
    for name in ("modules.json", "config_sentence_transformers.json"):
        (path / "0_Transformer" / name).unlink()
    with opened(MODELS / "bert-mean") as session, opened(path) as other:
        assert np.array_equal(other.embed_sync("a cat"), session.embed_sync("a cat"))
        assert other.count_tokens("a " * 400) == 128


def test_a_jina_bert_has_the_vectors_of_its_equations(tmp_path: Path) -> None:
    tensors = jina_bert.write(tmp_path / "model")
    gguf = write_encoder(tmp_path / "model", tmp_path / "model.gguf")
    facts, _ = golden("bert-mean")
    with opened(tmp_path / "model") as session, opened(gguf) as other:
        together = session.embed_sync(facts["texts"])
        assert_same(together, np.stack([jina_bert.vector(tensors, ids) for ids in facts["ids"]]))
        assert_same(np.stack([session.embed_sync(text) for text in facts["texts"]]), together)
        short = [text for text, ids in zip(facts["texts"], facts["ids"], strict=True) if len(ids) < 128]
        assert np.array_equal(other.embed_sync(short), session.embed_sync(short))
    for heads, slopes in ((8, [2.0**-power for power in range(1, 9)]), (6, jina_bert.SLOPES)):
        assert slopes_of(heads) == slopes
