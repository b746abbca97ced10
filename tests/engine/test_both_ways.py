"""Texts read in both directions have the embeddings of sentence-transformers, each as one chunk."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, PoolingType
from safetensors.numpy import load_file

import rekindle
from rekindle.settings.engine import SettingsOptions
from tests.gguf_models.files import write_model

MODELS = Path(__file__).parents[1] / "goldens" / "embeddings"
FEW: SettingsOptions = {
    "page_size": 16,
    "max_running": 4,
    "max_prefill_tokens": 272,
    "prefill_buckets": (272,),
    "decode_buckets": (4,),
    "precompile": "lazy",
    "dtype": "float32",
    "disk_cache_bytes": 0,
}


def golden(name: str) -> tuple[list[str], dict[str, Any]]:
    """Return the texts, and their embeddings by the way of their prompt."""
    texts: list[str] = json.loads((MODELS / name / "texts.json").read_text(encoding="utf-8"))
    return texts, dict(np.load(MODELS / name / "golden.npz"))


def assert_same(vectors: Any, expected: Any) -> None:
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["gemma", *(pytest.param(name, marks=pytest.mark.wide) for name in ("qwen3", "mistral"))]
)
def test_embeddings_are_those_of_sentence_transformers(name: str) -> None:
    texts, expected = golden(name)
    with rekindle.open_sync(MODELS / name, progress=False, **FEW) as session:
        assert_same(session.embed_sync(texts, instruction=""), expected["plain"])
        assert_same(session.embed_sync(texts, instruction="query"), expected["query"])
        assert_same(session.embed_sync(texts), expected["none"])
        before = session.stats.scheduler
        assert_same(session.embed_sync(texts[2], instruction=""), expected["plain"][2])
        after, length = session.stats.scheduler, session.count_tokens(texts[2])
        assert after.computed_tokens - before.computed_tokens == length, "no part of a text is cached"
        assert after.ticks - before.ticks == 1, "a text is one chunk"
        many = session.embed_sync(texts * 3, instruction="")
        assert_same(many, np.tile(expected["plain"], (3, 1)))
        assert session.stats.unexpected_compilations == 0


@pytest.mark.wide
@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_an_embedding_may_be_the_state_of_the_first_token(name: str, tmp_path: Path) -> None:
    texts, expected = golden(name)
    path = tmp_path / "model"
    shutil.copytree(MODELS / name, path)
    with rekindle.open_sync(path, progress=False, **FEW) as session:
        assert_same(session.embed_sync(texts, instruction="", pooling="cls"), expected["cls"])
        assert_same(session.embed_sync(texts, instruction=""), expected["plain"])
    pooling = path / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode_cls_token": True}))
    with rekindle.open_sync(path, progress=False, **FEW) as session:
        assert_same(session.embed_sync(texts * 2, instruction=""), np.tile(expected["cls"], (2, 1)))
        assert_same(
            session.embed_sync(texts[0], instruction="", pooling="last" if name == "qwen3" else "mean"),
            expected["plain"][0],
        )


def test_what_such_a_model_cannot_do_is_refused_by_name() -> None:
    with rekindle.open_sync(MODELS / "gemma", progress=False, **FEW) as session:
        for call in (session.generate_sync, session.prefix_sync, session.perplexity_sync):
            with pytest.raises(rekindle.InvalidRequest, match=r"reads texts in both directions, so .* use embed\(\)"):
                call("A ship.")
        with pytest.raises(rekindle.InvalidRequest, match="dimensions must be an integer from 1 to 24, got 25"):
            session.embed_sync("A ship.", dimensions=25)
        with pytest.raises(rekindle.PromptTooLong, match="at most 272 fit"):
            session.embed_sync("A ship. " * 40)


def test_rerank_compares_embeddings_after_the_dense_layers() -> None:
    texts, expected = golden("gemma")
    with rekindle.open_sync(MODELS / "gemma", progress=False, **FEW) as session:
        ranking = session.rerank_sync(texts[0], texts[1:])
        query, documents = (session.embed_sync(part, instruction=name) for part, name in (
            (texts[:1], "query"), (texts[1:], "document"),
        ))  # fmt: skip
    np.testing.assert_allclose(sorted(ranking.scores), sorted(documents @ query[0]), atol=1e-5)
    assert_same(query[0], expected["query"][0])


@pytest.mark.wide
@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.CLS])
def test_a_gguf_file_of_embedding_gemma_gives_the_same_embeddings(tmp_path: Path, pooling: PoolingType) -> None:
    origin = MODELS / "gemma"
    config = json.loads((origin / "config.json").read_text(encoding="utf-8"))
    directory = tmp_path / "model"
    shutil.copytree(origin, directory)
    # As of the published model; files do not have them.
    config |= {"query_pre_attn_scalar": config["head_dim"], "layer_types": ["sliding_attention"] * 2}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def complete(writer: GGUFWriter) -> None:
        writer.add_pooling_type(pooling)
        for number, folder in ((2, "2_Dense"), (3, "3_Dense")):
            weight = load_file(origin / folder / "model.safetensors")["linear.weight"]
            writer.add_tensor(f"dense_{number}.weight", weight)

    path = write_model(directory, tmp_path / "model.gguf", complete)
    texts, _ = golden("gemma")
    ids = [[2, *text.encode(), 1] for text in texts]
    with (
        rekindle.open_sync(path, progress=False, **FEW) as session,
        rekindle.open_sync(directory, progress=False, **FEW) as other,
    ):
        way: Any = pooling.name.lower()
        assert_same(session.embed_sync(token_ids=ids), other.embed_sync(token_ids=ids, instruction="", pooling=way))
