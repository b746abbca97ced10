"""Cohere's package and LiteLLM rank documents on the server as the session does."""

from typing import Any

import cohere
import litellm
import pytest

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

DOCUMENTS = ["Cows eat grass.", "Paris is the capital of France.", "Lyon is in France."]


@pytest.fixture(scope="module")
def expected(session: rekindle.Session) -> list[tuple[int, float]]:
    return [(each.index, each.score) for each in session.rerank_sync("capital of France", DOCUMENTS)]


def close(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> bool:
    places = [index for index, _ in found] == [index for index, _ in expected]
    return places and [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_cohere_ranks(server: Server, expected: list[tuple[int, float]]) -> None:
    client = cohere.ClientV2("none", base_url=server.url)
    found = client.rerank(model=NAME, query="capital of France", documents=DOCUMENTS)
    assert close([(each.index, each.relevance_score) for each in found.results], expected)
    former: Any = cohere.Client("none", base_url=server.url)
    best = former.rerank(model=NAME, query="capital of France", documents=DOCUMENTS, top_n=1, return_documents=True)
    (first,) = best.results
    assert first.document.text == DOCUMENTS[expected[0][0]]


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere", "jina_ai"])
def test_litellm_ranks(server: Server, expected: list[tuple[int, float]], provider: str) -> None:
    found: Any = litellm.rerank(
        model=f"{provider}/{NAME}",
        query="capital of France",
        documents=DOCUMENTS,
        top_n=3,
        api_base=f"{server.url}/v2/rerank" if provider == "cohere" else f"{server.url}/rerank",
        api_key="none",
    )
    assert close([(each["index"], each["relevance_score"]) for each in found.results], expected)
