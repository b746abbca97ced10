"""Embeddings are the reference's hidden states, however the work is cut up, and made as a model's files say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.settings.engine import SettingsOptions
from tests.sentence_models import END, MEAN, QUERY, classifier, embedding_model, text_ranker

FEW: SettingsOptions = {
    "page_size": 16,
    "num_pages": 13,
    "max_context": 112,
    "max_running": 4,
    "max_prefill_tokens": 32,
    "prefill_chunk": 16,
    "prefill_buckets": (32,),
    "decode_buckets": (4,),
    "precompile": "lazy",
    "dtype": "float32",
}
"""Chunks of 16 tokens, and 12 pages; a text of 80 tokens takes five."""
Array = np.ndarray[Any, np.dtype[Any]]


def unit(vectors: Array) -> Array:
    units: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return units


def assert_same(vectors: Array, expected: Array) -> None:
    """Compare with embeddings of length 1: cosine, and each number."""
    assert vectors.dtype == np.float32
    assert vectors.shape == expected.shape
    assert (np.sum(vectors * expected, axis=-1) > 0.99999).all()
    np.testing.assert_allclose(vectors, expected, atol=2e-4)


@pytest.mark.parametrize(
    "family",
    ["llama-embed", *(pytest.param(family, marks=pytest.mark.wide) for family in ("qwen3-embed", "mistral", "gemma3"))],
)
def test_they_are_the_references_alone_batched_chunked_cached_and_preempted(family: str, families: Path) -> None:
    golden = np.load(families / family / "golden.npz")
    texts, hidden = golden["input_ids"].tolist(), golden["hidden"].astype(np.float64)
    last, mean = unit(hidden[:, -1]), unit(hidden.mean(1))
    prefixes = [50, 33, 16, 1]
    with rekindle.open_sync(families / family, progress=False, **FEW) as session:
        assert_same(session.embed_sync(token_ids=texts[0]), last[0])
        np.testing.assert_allclose(last, golden["embedding"], atol=1e-5)
        assert_same(session.embed_sync(token_ids=texts, pooling="mean"), mean)
        computed = session.stats.scheduler.computed_tokens
        assert_same(session.embed_sync(token_ids=texts), last)
        assert session.stats.scheduler.computed_tokens - computed == 2 * 16, "all but the last block was to be cached"
        others = [texts[0][:length] for length in prefixes]
        assert_same(session.embed_sync(token_ids=others), unit(hidden[0, [length - 1 for length in prefixes]]))
        means = unit(np.stack([hidden[0, :length].mean(0) for length in prefixes]))
        assert_same(session.embed_sync(token_ids=others, pooling="mean"), means)
        raw = session.embed_sync(token_ids=texts[1], normalize=False, dimensions=7)
        np.testing.assert_allclose(raw, hidden[1, -1, :7], atol=1e-3)
        assert_same(session.embed_sync(token_ids=texts[1], dimensions=7), unit(hidden[1, -1, :7]))
        busy = [session.submit(token_ids=[5, number], max_tokens=90, ignore_eos=True) for number in range(3)]
        beside = [session.embed_sync(token_ids=texts, pooling=way) for way in ("mean", "last", "mean", "last")]
        assert {len(each.result().token_ids) for each in busy} == {90}
        for vectors, expected in zip(beside, (mean, last, mean, last), strict=True):
            assert_same(vectors, expected)
        assert session.stats.scheduler.preemptions > 0
        assert session.stats.unexpected_compilations == 0
        assert session.embed_sync([]).shape == (0, hidden.shape[2])


@pytest.fixture(scope="module")
def model(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedding_model(families / "qwen3-embed", tmp_path_factory.mktemp("models") / "embedding")


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(model, progress=False, **FEW) as opened:
        yield opened


def ids(text: str) -> list[int]:
    return [*text.encode(), END]


@pytest.mark.wide
def test_texts_have_the_end_token_that_the_tokenizer_puts_there(session: rekindle.Session) -> None:
    text = session.embed_sync("A cat.")
    assert session.count_tokens("A cat.") == 7
    tokens = session.encode("A cat.")
    np.testing.assert_allclose(text, session.embed_sync(token_ids=[*tokens, END]), atol=1e-6)
    assert np.linalg.norm(text) == pytest.approx(1, abs=1e-6)


def test_an_instruction_is_put_before_by_its_name_or_as_it_is(session: rekindle.Session) -> None:
    by_name = session.embed_sync(["cats", "dogs"], instruction="query")
    np.testing.assert_allclose(by_name, session.embed_sync([QUERY + "cats", QUERY + "dogs"]), atol=1e-6)
    np.testing.assert_allclose(by_name, session.embed_sync(["cats", "dogs"], instruction=QUERY), atol=1e-6)
    plain = session.embed_sync("cats")
    np.testing.assert_array_equal(plain, session.embed_sync("cats", instruction="document"))
    with pytest.raises(rekindle.InvalidRequest, match="no instruction named 'qury' \\(it has: query, document\\)"):
        session.embed_sync("cats", instruction="qury")
    with pytest.raises(rekindle.InvalidRequest, match="an instruction applies to texts only"):
        session.embed_sync(token_ids=[1, 2], instruction="query")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"pooling": "cls"},
            'the pooling "cls" is the first token, which sees nothing of the text behind it in a causal',
        ),
        (
            {"pooling": 1},
            'pooling must be "last" or "mean", or for a model that reads texts in both directions also "cls", "max", '
            '"mean_sqrt_len" or "weightedmean", got 1',
        ),
        ({"normalize": "yes"}, "normalize must be True or False, got 'yes'"),
        ({"dimensions": 0}, "dimensions must be an integer from 1 to 32, got 0"),
        ({"dimensions": 33}, "dimensions must be an integer from 1 to 32, got 33"),
        ({"instruction": 3}, "instruction must be a str, got 3"),
        ({"progress": 1}, "progress must be True or False, got 1"),
        ({"cache_salt": None}, "cache_salt must be a str, got None"),
        ({"token_ids": [1]}, "give either a prompt or token_ids, and not both"),
    ],
)
def test_bad_arguments_are_refused(session: rekindle.Session, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(rekindle.InvalidRequest, match=said.replace("(", "\\(")):
        session.embed_sync("text", **wrong)


def test_texts_that_cannot_be_served_are_named(session: rekindle.Session) -> None:
    with pytest.raises(rekindle.InvalidBatch, match="the prompt has 113 tokens") as caught:
        session.embed_sync(["short", "x" * 112, ""])
    assert set(caught.value.errors) == {1, 2}
    with pytest.raises(rekindle.PromptTooLong):
        session.embed_sync("x" * 112)


@pytest.mark.anyio
async def test_a_closed_session_says_so(model: Path) -> None:
    session = await rekindle.open(model, progress=False, **FEW)
    vector = await session.embed("A cat.")
    assert vector.shape == (32,)
    await session.close()
    for texts in ([], "A cat.", ["A cat."]):
        with pytest.raises(rekindle.SessionClosed):
            await session.embed(texts)


def test_pooling_and_length_are_those_of_the_files(families: Path, tmp_path: Path) -> None:
    two = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    prompts = {"prompts": {"q": "Q: "}, "default_prompt_name": "q"}
    path = embedding_model(families / "qwen3-embed", tmp_path / "mean", two, MEAN, prompts)
    with rekindle.open_sync(path, progress=False, **FEW) as session:
        own = session.embed_sync("cats")
        given = session.embed_sync("Q: cats", instruction="", pooling="mean", normalize=False)
        np.testing.assert_allclose(own, given, atol=1e-6)
        assert np.linalg.norm(own) != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooling": {"pooling_mode_cls_token": True}}, 'the pooling "cls" is the first token'),
        (
            {"pooling": {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}},
            "its pooling is lasttoken, m",
        ),
        ({"pooling": {**MEAN, "include_prompt": False}}, "leaves the instruction's tokens out"),
        ({"modules": [{"path": "2_CNN", "type": "sentence_transformers.models.CNN"}]}, "further layers.*CNN"),
        (
            {"modules": [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]},
            "2_Dense has no model.safetensors",
        ),
    ],
)
def test_a_way_that_is_not_served_is_refused_unless_another_is_asked_for(
    families: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = embedding_model(families / "qwen3-embed", tmp_path / "model", **changes)
    with rekindle.open_sync(path, progress=False, **FEW) as session:
        with pytest.raises(rekindle.InvalidRequest, match=said):
            session.embed_sync("cats")
        assert session.embed_sync("cats", pooling="last").shape == (32,)


@pytest.mark.wide
def test_a_reranker_of_sentence_transformers_has_its_template_and_tokens(families: Path, tmp_path: Path) -> None:
    """Compare with sentence-transformers 6.2.0 on transformers 5.24.0."""
    documents = ["a text", "dogs"]
    with rekindle.open_sync(
        text_ranker(families / "qwen3-embed", tmp_path / "model"), progress=False, **FEW
    ) as session:
        logits = session.rerank_sync("cats", documents, activation=False).scores
        np.testing.assert_allclose(logits, [-2.4672804, -2.0412164], atol=2e-5)
        other = session.rerank_sync("cats", documents, activation=False, instruction="Other words.").scores
        np.testing.assert_allclose(other, [-1.5106173, 0.0842369], atol=2e-5)
        assert session.rerank_sync("cats", documents).scores[0] == pytest.approx(0.07818402, abs=1e-5)


@pytest.mark.parametrize("model", ["llama-tied", pytest.param("qwen3", marks=pytest.mark.wide)])
@pytest.mark.parametrize(
    ("labels", "config"),
    [
        (3, {}),
        pytest.param(1, {}, marks=pytest.mark.wide),
        pytest.param(2, {"problem_type": "multi_label_classification"}, marks=pytest.mark.wide),
    ],
)
def test_classes_are_those_of_the_head(
    families: Path, tmp_path: Path, model: str, labels: int, config: dict[str, Any]
) -> None:
    head = classifier(families / model, tmp_path / "model", labels, **config)
    with rekindle.open_sync(tmp_path / "model", progress=False, **FEW) as session:
        states = session.embed_sync(["A cat.", "A dog."], pooling="last", normalize=False)
        found = session.classify_sync(["A cat.", "A dog."])
        np.testing.assert_allclose([each.logits for each in found], states @ head.T, atol=1e-4)
        logits = np.array(found[0].logits)
        shares = 1 / (1 + np.exp(-logits)) if labels != 3 else np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(found[0].probabilities, shares, atol=1e-6)
        assert found[0].best == f"class {int(np.argmax(logits))}"
        assert session.classify_sync("A cat.").labels == tuple(f"class {label}" for label in range(labels))
        for call in (session.generate_sync, session.score_sync, session.perplexity_sync):
            with pytest.raises(rekindle.InvalidRequest, match=r"no head that predicts tokens.* embed.* classify"):
                call("A cat.")
        assert session.stats.unexpected_compilations == 0
