"""The endpoints of text-embeddings-inference give vectors and classes of a session in its forms."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rekindle.formats.checkpoints.uses import Classifier, Embedding, Uses
from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask
from tests.unit.scripted import tokenizer

pytestmark = pytest.mark.anyio


@contextmanager
def serving(uses: Uses) -> Iterator[Session]:
    loaded = fake_loaded_engine(fake_limits(max_context=512, num_pages=128, page_size=16), tokenizer=tokenizer())
    with fake_session(replace(loaded, checkpoint=replace(loaded.checkpoint, uses=uses))) as session:
        yield session


@pytest.fixture
def embedder() -> Iterator[Session]:
    with serving(Uses(embedding=Embedding("mean", True, {"query": "query: "}))) as session:
        yield session


@pytest.fixture
def classifier() -> Iterator[Session]:
    weight = np.linspace(-0.01, 0.02, 3, dtype=np.float32)[:, None]
    with serving(Uses(classifier=Classifier(weight, ("a", "b", "c"), "softmax"))) as session:
        yield session


@pytest.mark.parametrize("inputs", ["The sea", ["The sea", "Oslo"]])
async def test_vectors_are_lists_of_numbers(embedder: Session, inputs: str | list[str]) -> None:
    reply = (await ask(app(embedder), "/embed", {"inputs": inputs, "truncate": True})).json
    expected = await embedder.embed([inputs] if isinstance(inputs, str) else inputs)
    np.testing.assert_array_equal(np.array(reply, np.float32), expected)
    raw = (await ask(app(embedder), "/embed", {"inputs": inputs, "normalize": False})).json
    assert raw != reply
    query = (await ask(app(embedder), "/embed", {"inputs": "a", "prompt_name": "query"})).json
    np.testing.assert_array_equal(np.array(query, np.float32)[0], await embedder.embed("query: a"))


async def test_classes_come_with_their_scores_the_likeliest_first(classifier: Session) -> None:
    one = (await ask(app(classifier), "/predict", {"inputs": "The sea"})).json
    expected = await classifier.classify("The sea")
    by_label = dict(zip(expected.labels, expected.probabilities, strict=True))
    assert [each["label"] for each in one] == sorted(by_label, key=lambda label: -by_label[label])
    assert {each["label"]: each["score"] for each in one} == by_label
    several = (await ask(app(classifier), "/predict", {"inputs": [["The sea"], ["Oslo"]]})).json
    assert [len(several), several[0]] == [2, one]
    raw = (await ask(app(classifier), "/predict", {"inputs": "The sea", "raw_scores": True})).json
    assert sorted(each["score"] for each in raw) == sorted(expected.logits)


async def test_similarities_are_cosines_and_the_root_does_the_task_of_body_and_model(
    embedder: Session, classifier: Session
) -> None:
    body = {"inputs": {"source_sentence": "The sea", "sentences": ["Oslo", "The sea"]}}
    found = (await ask(app(embedder), "/similarity", body)).json
    vectors = await embedder.embed(["The sea", "Oslo", "The sea"])
    assert found == pytest.approx((vectors[1:] @ vectors[0]).tolist(), abs=1e-6)
    assert (await ask(app(embedder), "/", body)).json == found
    for served, path, inputs in (
        (embedder, "/embed", {"inputs": ["The sea"]}),
        (classifier, "/predict", {"inputs": "The sea"}),
        (embedder, "/rerank", {"query": "The sea", "texts": ["Oslo", "The sea"]}),
    ):
        assert (await ask(app(served), "/", inputs)).json == (await ask(app(served), path, inputs)).json


async def test_the_model_and_its_task_are_told(embedder: Session, classifier: Session) -> None:
    told = (await ask(app(embedder), "/info")).json
    assert (told["model_id"], told["model_type"], told["max_input_length"]) == (embedder.name, {"embedding": {}}, 512)
    names = (await ask(app(classifier), "/info")).json["model_type"]["classifier"]
    assert names == {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    with serving(Uses(classifier=Classifier(np.zeros((1, 1), np.float32), ("relevance",), "sigmoid"))) as ranker:
        assert list((await ask(app(ranker), "/info")).json["model_type"]) == ["reranker"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/embed", {}, "inputs is missing"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, "must be right or left, got 'up'"),
        ("/embed", {"inputs": "a", "prompt_name": "other", "truncate": True}, "no prompt named 'other' (it has: none)"),
        ("/embed", {"inputs": "a", "dimensions": 10**6}, "dimensions must be an integer from 1"),
        ("/predict", {"inputs": []}, "must be a text, a list of two texts for a pair"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, "all of one text or all of two"),
        ("/predict", {"inputs": ["a", "b"]}, "second= is for encoders"),
        ("/predict", {"inputs": 5}, "must be a text"),
        ("/similarity", {"inputs": "a"}, "must have a source_sentence and from 1 to"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "must have a source_sentence"),
    ],
)
async def test_a_bad_body_is_refused_with_its_reason(classifier: Session, path: str, body: Any, reason: str) -> None:
    reply = await ask(app(classifier), path, body)
    assert reply.status == 400
    assert reason in reply.json["error"]["message"]
