"""A model such as Qwen3-VL-Reranker ranks images by the probability of a yes, in the format of its own code."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.formats.images.sources import image_source
from rekindle.formats.images.writing import data_url
from rekindle.scoring.ranking_prompts import SYSTEM
from rekindle.server import app
from tests.engine.pictured import Pictured
from tests.unit.asgi import ask

pytestmark = pytest.mark.wide
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "max_prefill_tokens": 96, "max_running": 4, "restore": "off"}
INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("ranking") / "model"
    shutil.copytree(Pictured("qwen3-vl").path, path)
    _with_yes(path / "tokenizer.json")
    with rekindle.open_sync(path, **SETTINGS, precompile="lazy", progress=False) as session:
        yield session


def _with_yes(path: Path) -> None:
    """Give a tokenizer the token "yes" in place of its last one."""
    state = json.loads(path.read_text())
    vocabulary, merges = state["model"]["vocab"], state["model"]["merges"]
    (last,) = (text for text, token in vocabulary.items() if token == len(vocabulary) - 1)
    assert "".join(merges.pop()) == last
    vocabulary["yes"] = vocabulary.pop(last)
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
    state["added_tokens"].append(flags | {"id": vocabulary["yes"], "content": "yes"})
    path.write_text(json.dumps(state))


def image(number: int) -> dict[str, Any]:
    return {"type": "image", "image": Pictured("qwen3-vl").path / f"image-{number}.png"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_documents_with_images_are_ranked_by_the_probability_of_a_yes(session: rekindle.Session) -> None:
    query: Any = [text("cats"), image(0)]
    documents: Any = [[image(1)], "a text", [image(2), text("and words")]]
    ranking = session.rerank_sync(query, documents)
    assert session.tokenizer is not None
    yes, no = (session.tokenizer.encode(word, False)[0] for word in ("yes", "no"))
    for document, score in zip(documents, ranking.scores, strict=True):
        parts = [text(document)] if isinstance(document, str) else document
        content = [text(f"<Instruct>: {INSTRUCTION}"), text("<Query>:"), *query, text("\n<Document>:"), *parts]
        messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        options: Any = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        answer = session.generate_sync(messages, **options, allowed_token_ids=[yes, no], logprobs_of="sampled")
        by_token = {each.token_id: each.logprob for each in answer.logprobs[0].top}
        assert score == pytest.approx(1 / (1 + np.exp(by_token[no] - by_token[yes])), abs=1e-5)
    assert len(set(ranking.scores)) == 3
    assert "[image] and words" in repr(ranking)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/rerank", "/score"])
async def test_images_are_ranked_by_http(session: rekindle.Session, path: str) -> None:
    contents = [[image(1)], [image(2), text("and words")]]
    expected = (await session.rerank("cats", ["a text", *contents])).scores
    documents = ["a text", *({"content": [_by_url(part) for part in parts]} for parts in contents)]
    name = "query" if path == "/v1/rerank" else "text_1"
    body = {name: "cats", "documents" if name == "query" else "text_2": documents}
    reply = await ask(app(session), path, body)
    if name == "query":
        scores = {each["index"]: each["relevance_score"] for each in reply.json["results"]}
        assert {each["document"]["text"] for each in reply.json["results"]} == {
            "a text",
            "[image]",
            "[image] and words",
        }
    else:
        scores = {each["index"]: each["score"] for each in reply.json["data"]}
    assert [scores[index] for index in range(3)] == pytest.approx(expected, abs=1e-6)
    refused = await ask(app(session), path, {**body, "max_tokens_per_doc": 9})
    assert "max_tokens_per_doc is for texts alone" in refused.error["message"]


def _by_url(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    return {"type": "image_url", "image_url": {"url": data_url(image_source(part["image"]))}}


def test_documents_of_images_are_not_cut(session: rekindle.Session) -> None:
    with pytest.raises(rekindle.InvalidRequest, match="documents of text alone"):
        session.rerank_sync("cats", [[image(1)]], truncate_prompt_tokens=50)
    wrong: Any = [[image(1), {"type": "audio"}]]
    with pytest.raises(rekindle.InvalidRequest, match=r"documents\[0\]"):
        session.rerank_sync("cats", wrong)
