"""Cohere's API gives vectors of a session by type; Jina's fields of /v1/embeddings have their effects."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rekindle.formats.checkpoints.uses import Embedding, Uses
from rekindle.server import app
from rekindle.session.session import Session
from tests.unit.asgi import ask
from tests.unit.server.test_server_tei import serving

pytestmark = pytest.mark.anyio

TEXTS = ["The sea", "Oslo"]


@pytest.fixture
def embedder() -> Iterator[Session]:
    prompts = {"query": "query: ", "passage": "passage: ", "clustering": "group: "}
    with serving(Uses(embedding=Embedding("mean", True, prompts))) as session:
        yield session


@pytest.mark.parametrize(
    ("kind", "prompt"), [("search_query", "query: "), ("search_document", "passage: "), ("classification", "")]
)
async def test_the_type_of_input_names_the_prompt(embedder: Session, kind: str, prompt: str) -> None:
    reply = (await ask(app(embedder), "/v2/embed", {"texts": TEXTS, "input_type": kind})).json
    expected = await embedder.embed([prompt + text for text in TEXTS])
    np.testing.assert_array_equal(np.array(reply["embeddings"]["float"], np.float32), expected)
    assert (reply["response_type"], reply["texts"]) == ("embeddings_by_type", TEXTS)
    tokens = sum(embedder.count_tokens(prompt + text) for text in TEXTS)
    assert reply["meta"]["billed_units"] == {"input_tokens": tokens}


async def test_vectors_come_as_numbers_bytes_and_signs(embedder: Session) -> None:
    types = ["base64", "ubinary", "binary"]
    body = {"inputs": [{"content": [{"type": "text", "text": text}]} for text in TEXTS], "embedding_types": types}
    reply = (await ask(app(embedder), "/v2/embed", {**body, "input_type": "clustering"})).json
    by_type = reply["embeddings"]
    assert list(by_type) == types
    vectors = await embedder.embed(TEXTS, instruction="clustering")
    bits = np.packbits(vectors > 0, axis=1)
    np.testing.assert_array_equal(by_type["ubinary"], bits)
    np.testing.assert_array_equal(by_type["binary"], bits.astype(int) - 128)
    floats = (await ask(app(embedder), "/v1/embed", {"texts": TEXTS})).json
    assert floats["response_type"] == "embeddings_floats"
    np.testing.assert_array_equal(np.array(floats["embeddings"], np.float32), await embedder.embed(TEXTS))


async def test_long_texts_lose_the_side_that_the_client_says(embedder: Session) -> None:
    text = "abcdefgh" * 100
    for cut, kept in (("END", text[:20]), ("START", text[-20:])):
        body = {"texts": [text], "truncate": cut, "max_tokens": 20}
        reply = (await ask(app(embedder), "/v1/embed", body)).json
        np.testing.assert_array_equal(np.array(reply["embeddings"][0], np.float32), await embedder.embed(kept))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/embed", {"texts": ["abc" * 400], "input_type": "search_query"}),
        ("/embed", {"inputs": ["abc" * 400], "prompt_name": "query", "truncate": True}),
        ("/v1/embeddings", {"input": ["abc" * 400], "task": "retrieval.query", "truncate": True}),
    ],
)
async def test_a_text_behind_a_prompt_is_cut_to_the_context(embedder: Session, path: str, body: Any) -> None:
    longest = embedder.settings.max_context
    assert longest is not None
    reply = (await ask(app(embedder), path, body)).json
    vector = {
        "/v2/embed": lambda: reply["embeddings"]["float"][0],
        "/embed": lambda: reply[0],
        "/v1/embeddings": lambda: reply["data"][0]["embedding"],
    }[path]()
    expected = await embedder.embed(token_ids=embedder.encode("query: " + "abc" * 400)[:longest], instruction="")
    np.testing.assert_array_equal(np.array(vector, np.float32), expected)


async def test_an_empty_prompt_by_name_takes_the_place_of_the_default() -> None:
    with serving(Uses(embedding=Embedding("mean", True, {"query": "query: ", "document": ""}, "query"))) as session:
        body = {"texts": TEXTS, "input_type": "search_document"}
        reply = (await ask(app(session), "/v2/embed", body)).json
        expected = await session.embed(TEXTS, instruction="document")
        np.testing.assert_array_equal(np.array(reply["embeddings"]["float"], np.float32), expected)


async def test_fields_of_jina(embedder: Session) -> None:
    body = {"input": [{"text": text} for text in TEXTS], "task": "retrieval.passage", "normalized": False}
    reply = (await ask(app(embedder), "/v1/embeddings", {**body, "late_chunking": False})).json
    expected = await embedder.embed(TEXTS, instruction="passage", normalize=False)
    found = np.array([each["embedding"] for each in reply["data"]], np.float32)
    np.testing.assert_array_equal(found, expected)
    packed = (await ask(app(embedder), "/v1/embeddings", {**body, "embedding_type": "base64"})).json
    assert isinstance(packed["data"][0]["embedding"], str)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v2/embed", {"texts": TEXTS}, "input_type must be one of search_query"),
        ("/v2/embed", {"texts": TEXTS, "input_type": "image"}, "input_type must be one of search_query"),
        ("/v1/embed", {"texts": TEXTS, "embedding_types": ["int8"]}, "need a calibration"),
        ("/v1/embed", {"images": ["data:"]}, "give texts, or messages with images"),
        ("/v1/embed", {"inputs": [{"content": []}]}, "objects with one text as content"),
        ("/v1/embed", {"texts": TEXTS, "truncate": "MIDDLE"}, "truncate must be NONE, START or END"),
        ("/v1/embed", {"texts": TEXTS, "max_tokens": 0}, "max_tokens must be at least 1"),
        ("/v1/embeddings", {"input": TEXTS, "embedding_type": "binary"}, "embedding_type must be float or base64"),
        ("/v1/embeddings", {"input": [[1, 2]], "task": "retrieval.query"}, "goes before texts only"),
        ("/v1/embeddings", {"input": TEXTS, "late_chunking": True}, "late_chunking cannot be served"),
    ],
)
async def test_a_bad_body_is_refused_with_its_reason(embedder: Session, path: str, body: Any, reason: str) -> None:
    reply = await ask(app(embedder), path, body)
    assert reply.status == 400
    assert reason in reply.json["error"]["message"]
