"""Clients of vectors and rankings get those of an encoder's session: OpenAI's, Cohere's, Ollama's and TEI's forms."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import litellm
import numpy as np
import ollama
import openai
import pytest
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from huggingface_hub import InferenceClient
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings

import rekindle
from rekindle.server.listening.running import Server

MODELS = Path(__file__).parents[1] / "goldens" / "encoders"
NAME = "bert-mean"
TEXTS = ["The sea is calm.", "Oslo lies in Norway.", "Cheese is made of milk."]
KEY = Secret.from_token("none")


def opened(name: str) -> rekindle.Session:
    return rekindle.open_sync(MODELS / name, progress=False, precompile="lazy")


@pytest.fixture(scope="module")
def encoder() -> Iterator[rekindle.Session]:
    with opened(NAME) as session:
        yield session


@pytest.fixture(scope="module")
def url(encoder: rekindle.Session) -> Iterator[str]:
    with encoder.serve_sync(port=0) as server:
        yield server.url


@pytest.fixture(scope="module")
def judges() -> Iterator[tuple[rekindle.Session, Server]]:
    with opened("distilbert-classes") as session, session.serve_sync(port=0) as server:
        yield session, server


@pytest.fixture(scope="module")
def expected(encoder: rekindle.Session) -> Any:
    return encoder.embed_sync(TEXTS)


@pytest.fixture(scope="module")
def order(encoder: rekindle.Session) -> list[str]:
    return [str(each.document) for each in encoder.rerank_sync("sea", TEXTS)]


def check(vectors: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(vectors, np.float32), expected, rtol=0, atol=1e-6)


def documents() -> list[Document]:
    return [Document(content=text) for text in TEXTS]


def test_openai(url: str, expected: Any) -> None:
    create = openai.OpenAI(base_url=f"{url}/v1", api_key="none").embeddings.create
    check([each.embedding for each in create(model=NAME, input=TEXTS).data], expected)  # base64 by its default
    check([each.embedding for each in create(model=NAME, input=TEXTS, encoding_format="float").data], expected)
    assert len(create(model=NAME, input=TEXTS[0], dimensions=8).data[0].embedding) == 8
    langchain = OpenAIEmbeddings(
        model=NAME, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )  # which would be that of a tokenizer of OpenAI's
    check(langchain.embed_documents(TEXTS), expected)


def test_cohere(url: str, expected: Any, order: list[str], encoder: rekindle.Session) -> None:
    client: Any = cohere.ClientV2("none", base_url=url)
    kinds: Any = ["float", "ubinary"]
    found = client.embed(texts=TEXTS, model=NAME, input_type="search_document", embedding_types=kinds)
    check(found.embeddings.float_, expected)
    np.testing.assert_array_equal(found.embeddings.ubinary, np.packbits(expected > 0, axis=1))
    former: Any = cohere.Client("none", base_url=url)
    queries = encoder.embed_sync(TEXTS, instruction="query")
    check(former.embed(texts=TEXTS, model=NAME, input_type="search_query").embeddings, queries)
    ranked = client.rerank(model=NAME, query="sea", documents=TEXTS, top_n=2)
    assert [TEXTS[each.index] for each in ranked.results] == order[:2]
    langchain: Any = CohereEmbeddings(model=NAME, base_url=url, cohere_api_key="none")
    check(langchain.embed_documents(TEXTS), expected)
    ranks: Any = CohereRerank(model=NAME, base_url=url, cohere_api_key="none", top_n=2)
    assert [TEXTS[each["index"]] for each in ranks.rerank(TEXTS, "sea")] == order[:2]
    embedder = CohereDocumentEmbedder(api_base_url=url, api_key=KEY, model=NAME, progress_bar=False)
    check([each.embedding for each in embedder.run(documents())["documents"]], expected)
    ranker = CohereRanker(api_base_url=url, api_key=KEY, model=NAME, top_k=2)
    assert [each.content for each in ranker.run(query="sea", documents=documents())["documents"]] == order[:2]


def test_jina(url: str, expected: Any, order: list[str]) -> None:
    embedder = JinaDocumentEmbedder(
        base_url=f"{url}/v1/embeddings",
        api_key=KEY,
        model=NAME,
        task="retrieval.passage",
        late_chunking=False,
        progress_bar=False,
    )
    check([each.embedding for each in embedder.run(documents())["documents"]], expected)
    ranker = JinaRanker(base_url=f"{url}/v1/rerank", api_key=KEY, model=NAME, top_k=2)
    assert [each.content for each in ranker.run(query="sea", documents=documents())["documents"]] == order[:2]


def test_text_embeddings_inference(
    url: str,
    expected: Any,
    order: list[str],
    judges: tuple[rekindle.Session, Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # a server here is no hub
    client = InferenceClient(url)
    vectors: Any = client.feature_extraction(TEXTS, normalize=True, truncate=True)
    check(vectors, expected)
    cosines = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    assert cosines == pytest.approx((expected[1:] @ expected[0]).tolist(), abs=1e-6)
    api: Any = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "token": None, "normalize": True}
    embedder = HuggingFaceAPIDocumentEmbedder(progress_bar=False, **api)
    check([each.embedding for each in embedder.run(documents())["documents"]], expected)
    check(HuggingFaceAPITextEmbedder(**api).run(TEXTS[0])["embedding"], expected[0])
    ranker = HuggingFaceTEIRanker(url=url, top_k=2, token=None)
    assert [each.content for each in ranker.run(query="sea", documents=documents())["documents"]] == order[:2]
    session, server = judges
    likeliest: Any = InferenceClient(server.url).text_classification(TEXTS[0])
    assert likeliest.label == session.classify_sync(TEXTS[0]).best


def test_ollama(url: str, expected: Any) -> None:
    client = ollama.Client(host=url)
    check(client.embed(model=NAME, input=TEXTS, truncate=True, keep_alive=60).embeddings, expected)
    assert len(client.embed(model=NAME, input=TEXTS[0], dimensions=8).embeddings[0]) == 8
    assert len(client.embeddings(model=NAME, prompt=TEXTS[0]).embedding) == expected.shape[1]
    assert client.show(NAME).capabilities == ["embedding"]
    check(OllamaEmbeddings(model=NAME, base_url=url).embed_documents(TEXTS), expected)


@pytest.mark.parametrize(
    ("provider", "path"),
    [("hosted_vllm", "/v1"), ("openai", "/v1"), ("cohere", "/v1/embed"), ("jina_ai", "/v1"), ("ollama", "")],
)
def test_litellm(url: str, expected: Any, provider: str, path: str) -> None:
    options = {"input_type": "search_document"} if provider == "cohere" else {}
    found: Any = litellm.embedding(
        model=f"{provider}/{NAME}", input=TEXTS, api_base=url + path, api_key="none", **options
    )
    check([each["embedding"] for each in found.data], expected)
