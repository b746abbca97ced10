"""The heads of encoders have the logits of transformers: over texts, pairs, tokens and masked words."""

import re
from typing import Any

import anyio
import numpy as np
import pytest

import rekindle
from rekindle.server import app
from tests.engine.test_encoders import FEW, MODELS, assert_same, golden, opened
from tests.unit.asgi import ask


def softmax(logits: Any) -> Any:
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def several(first: str, *others: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", [first, *(pytest.param(each, marks=pytest.mark.wide) for each in others)])


@several("bert", "xlm-roberta")
def test_pairs_are_ranked_by_a_cross_encoder(family: str) -> None:
    facts, numbers = golden(f"{family}-cross")
    expected = numbers["logits"][:, 0]
    with opened(MODELS / f"{family}-cross") as session:
        for (query, document), logit in zip(facts["pairs"], expected, strict=True):
            (found,) = session.rerank_sync(query, [document], activation=False).scores
            assert found == pytest.approx(logit, abs=1e-5)
        query, first = facts["pairs"][0]
        ranking = session.rerank_sync(query, [first, facts["pairs"][1][1]])
        np.testing.assert_allclose(ranking.scores, 1 / (1 + np.exp(-expected[:2])), atol=1e-5)
        assert ranking.prompt_tokens > 0
        with pytest.raises(rekindle.InvalidRequest, match="ranks pairs of a query and a document as they are"):
            session.rerank_sync(query, [first], instruction="Find it.")
        with pytest.raises(rekindle.InvalidRequest, match="query must be text that UTF-8 can encode"):
            session.rerank_sync("\ud800", [first])


@several("distilbert", "electra", "modernbert")
def test_texts_have_the_classes_of_a_head(family: str) -> None:
    facts, numbers = golden(f"{family}-classes")
    with opened(MODELS / f"{family}-classes") as session:
        found = session.classify_sync(facts["texts"])
        assert_same(np.array([each.logits for each in found]), numbers["logits"])
        np.testing.assert_allclose(found[0].probabilities, softmax(numbers["logits"][0]), atol=1e-5)
        assert found[0].best == f"LABEL_{numbers['logits'][0].argmax()}"
        with pytest.raises(rekindle.InvalidRequest, match=r"no head that classifies tokens: classify\(\)"):
            session.spans_sync("a")
        with pytest.raises(rekindle.InvalidRequest, match="head of this model has 3; use classify"):
            session.rerank_sync("a", ["b"])


@several("bert", "xlm-roberta")
def test_tokens_have_classes_and_make_spans(family: str) -> None:
    facts, numbers = golden(f"{family}-spans")
    with opened(MODELS / f"{family}-spans") as session:
        for index, (text, found) in enumerate(zip(facts["texts"], session.spans_sync(facts["texts"]), strict=True)):
            assert_same(found.logits, numbers[f"logits_{index}"])
            assert found.text == text
            assert all(text[each.start : each.end] and 0 < each.score < 1 for each in found)
        assert len(session.spans_sync("")) == 0
        with pytest.raises(rekindle.InvalidRequest, match=r"one that classifies tokens: use spans\(\)"):
            session.classify_sync("a")
        with pytest.raises(rekindle.InvalidRequest, match="aggregation must be one of simple, none"):
            session.spans_sync("a", aggregation="all")  # type: ignore[call-overload]


@several("bert", "mpnet", "nomic-bert")
def test_masks_are_filled_with_the_likeliest_words(family: str) -> None:
    facts, numbers = golden(f"{family}-mask")
    expected = softmax(numbers["logits"].astype(np.float64))
    best = np.argsort(-expected)[:7]
    with opened(MODELS / f"{family}-mask") as session:
        found = session.fill_sync(facts["text"], top_k=7)
        assert [each.token_id for each in found] == best.tolist()
        np.testing.assert_allclose([each.probability for each in found], expected[best], atol=1e-5)
        assert session.tokenizer is not None
        assert found.best == session.tokenizer.decode([int(best[0])])
        twice = session.fill_sync([f"{facts['text']} {facts['text']}"])[0]
        assert [len(words) for words in twice.masks] == [5, 5]
        mask = re.escape(session.tokenizer.decode([4], skip_special_tokens=False))
        with pytest.raises(rekindle.InvalidRequest, match=f"the text has no {mask}: write it"):
            session.fill_sync("The cat.")
        with pytest.raises(rekindle.InvalidRequest, match="behind the first 128 tokens"):
            session.fill_sync("a " * 200 + facts["text"])
        with pytest.raises(rekindle.InvalidRequest, match=r"use embed\(\) or fill\(\)"):
            session.generate_sync("The cat.")


def test_classes_of_pairs_are_those_of_a_cross_encoder() -> None:
    facts, numbers = golden("bert-cross")
    firsts, seconds = (list(texts) for texts in zip(*facts["pairs"], strict=True))
    with opened(MODELS / "bert-cross") as session:
        found = session.classify_sync(firsts, second=seconds)
        assert_same(np.array([each.logits for each in found]), numbers["logits"])
        one = session.classify_sync(firsts[0], second=seconds[0])
        assert one.logits[0] == pytest.approx(numbers["logits"][0, 0], abs=1e-5)
        with pytest.raises(rekindle.InvalidRequest, match="second must have a text for each of the 6 texts"):
            session.classify_sync(firsts, second=seconds[:2])


def test_ollamas_clients_choose_between_a_cut_and_an_error() -> None:
    async def work() -> None:
        async with await rekindle.open(MODELS / "bert-mean", progress=False, **FEW) as session:
            body = {"input": ["a", "word " * 200]}
            reply = await ask(app(session), "/api/embed", body)
            np.testing.assert_array_equal(np.float32(reply.json["embeddings"]), await session.embed(body["input"]))
            refusal = await ask(app(session), "/api/embed", {**body, "truncate": False})
            assert refusal.status == 400
            assert "more than the 128 tokens that the model's files allow" in refusal.json["error"]

    anyio.run(work)
