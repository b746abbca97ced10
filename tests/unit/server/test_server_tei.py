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


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/embed", {}, "inputs is missing"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, "must be right or left, got 'up'"),
        ("/embed", {"inputs": "a", "dimensions": 10**6}, "dimensions must be an integer from 1"),
        ("/predict", {"inputs": []}, "must be a text, a list of two texts for a pair"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, "all of one text or all of two"),
        ("/predict", {"inputs": ["a", "b"]}, "second= is for encoders"),
        ("/predict", {"inputs": 5}, "must be a text"),
    ],
)
async def test_a_bad_body_is_refused_with_its_reason(classifier: Session, path: str, body: Any, reason: str) -> None:
    reply = await ask(app(classifier), path, body)
    assert reply.status == 400
    assert reason in reply.json["error"]["message"]
