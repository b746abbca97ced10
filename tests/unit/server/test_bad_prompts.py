"""Errors about prompts name their places in the input of the caller, over HTTP and in Python."""

from typing import Any

import pytest

from rekindle.core.errors import InvalidBatch, InvalidRequest
from rekindle.core.request import checks
from rekindle.formats.checkpoints.uses import Embedding, Uses
from rekindle.server import app
from rekindle.session.session import Session
from tests.unit.asgi import ask
from tests.unit.server.test_server_judging import head, serving

pytestmark = pytest.mark.anyio

LONG = "x" * 600
USER = {"role": "user", "content": LONG}
TOO_LONG = "the prompt has 600 tokens"


@pytest.fixture(scope="module")
def one_class() -> Any:
    with serving(head("relevant")) as session:
        yield session


@pytest.mark.parametrize(
    ("path", "body", "param", "name"),
    [
        ("/v1/embeddings", {"input": LONG}, "input", None),
        ("/v1/embeddings", {"input": [1] * 600}, "input", None),
        ("/v1/embeddings", {"input": [LONG]}, "input", None),
        ("/v1/embeddings", {"input": ["a", LONG]}, "input", "input[1]"),
        ("/v1/embeddings", {"input": ["a", [1] * 600, LONG]}, "input", "input[1]"),
        ("/v1/embeddings", {"messages": [USER]}, "messages", None),
        ("/pooling", {"input": LONG}, "input", None),
        ("/classify", {"input": LONG}, "input", None),
        ("/classify", {"input": ["a", LONG]}, "input", "input[1]"),
        ("/v1/completions", {"prompt": LONG, "n": 2, "temperature": 0}, "prompt", None),
        ("/v1/completions", {"prompt": ["a", LONG], "n": 2, "temperature": 0}, "prompt", "prompt[1]"),
        ("/v1/completions", {"prompt": ["a", LONG], "n": 2, "temperature": 1}, "prompt", "prompt[1]"),
        ("/v1/chat/completions", {"messages": [USER], "n": 2, "temperature": 0}, "messages", None),
    ],
)
async def test_a_text_that_is_too_long_has_its_place_in_the_body(
    one_class: Session, path: str, body: dict[str, Any], param: str, name: str | None
) -> None:
    error = (await ask(app(one_class), path, body)).error
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    if name is None:
        assert error["message"].endswith(f"Please reduce the length of the {param}.")
    else:
        assert f"({name}: {TOO_LONG}" in error["message"]
    assert "prompt 0" not in error["message"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("", "the prompt is empty"),
        (["a", ""], "input[1]: the prompt is empty"),
        ([99999], "token_ids must be"),
        ([[1], [99999]], "input[1]: token_ids must be"),
        (["a", "", [1]], "input[1]: token_ids is empty"),
    ],
)
async def test_a_bad_input_has_its_place_in_the_body(one_class: Session, inputs: Any, message: str) -> None:
    reply = await ask(app(one_class), "/v1/embeddings", {"input": inputs})
    assert reply.status == 400
    assert reply.error["message"].startswith(message)


async def test_a_ranking_names_the_query_and_the_documents(one_class: Session) -> None:
    with pytest.raises(InvalidBatch, match=r"\n  document 1: ") as caught:
        await one_class.rerank("capital", ["Paris", LONG])
    assert caught.value.total == 2
    with serving(Uses(embedding=Embedding(pooling="last"))) as session:
        with pytest.raises(InvalidBatch, match=rf"\n  the query: {TOO_LONG}[^\n]*\n  document 1: {TOO_LONG}"):
            await session.rerank(LONG, ["Paris", LONG])
        for body in ({"query": "a", "documents": ["b", LONG]}, {"query": LONG, "documents": ["b"]}):
            error = (await ask(app(session), "/rerank", body)).error
            assert error["code"] == "context_length_exceeded"
            assert ("document 1: " if body["query"] == "a" else "the query: ") in error["message"]


@pytest.mark.parametrize("first", [["capital", "river", "capital", "river"], "capital"])
async def test_a_pair_has_its_place_in_the_body(one_class: Session, first: Any) -> None:
    body = {"text_1": first, "text_2": ["a", "b", LONG, LONG]}
    error = (await ask(app(one_class), "/score", body)).error
    assert (error["code"], error["param"]) == ("context_length_exceeded", "text_2")
    assert "text_2[2]: the prompt has " in error["message"]
    assert ("text_2[3]" in error["message"]) == (first == "capital"), "the second query was not computed"
    with serving(Uses(embedding=Embedding(pooling="last"))) as session:
        error = (await ask(app(session), "/score", {"queries": first, "documents": ["a", "b", LONG, "c"]})).error
        assert f"documents[2]: {TOO_LONG}" in error["message"]
        error = (await ask(app(session), "/score", {"queries": ["a", "b", LONG], "items": ["a", "b", "c"]})).error
        assert (error["param"], f"queries[2]: {TOO_LONG}" in error["message"]) == ("queries", True)
        error = (await ask(app(session), "/score", {"text_1": LONG, "text_2": ["a", "b"]})).error
        assert (error["param"], "[" in error["message"]) == ("text_1", False)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/v1/embeddings", {"truncate_prompt_tokens": -1}),
        ("/v1/embeddings", {"add_special_tokens": False}),
        ("/pooling", {"truncate_prompt_tokens": 512}),
        ("/api/embed", {}),
        ("/api/embeddings", {}),
        ("/v1/embeddings", {}),
    ],
)
async def test_a_text_that_the_server_cuts_has_the_default_prompt(path: str, options: dict[str, Any]) -> None:
    method = Embedding(pooling="last", prompts={"query": "Find: "}, default_prompt="query")
    with serving(Uses(embedding=method)) as session:
        assert session.text_prefix == "Find: "
        cuts = path.startswith("/api") or "truncate_prompt_tokens" in options
        text, field = LONG if cuts else "capital", "prompt" if path == "/api/embeddings" else "input"
        body = (await ask(app(session), path, {field: text, **options})).json
        ids = session.encode(f"Find: {text}")[:512]
        expected = await session.embed(token_ids=ids, instruction="")
        match path:
            case "/api/embed":
                vector, count = body["embeddings"][0], body["prompt_eval_count"]
            case "/api/embeddings":
                vector, count = body["embedding"], len(ids)
            case _:
                one = body["data"][0]
                vector, count = one["data" if path == "/pooling" else "embedding"], body["usage"]["prompt_tokens"]
        assert vector == pytest.approx(expected.tolist())
        assert count == len(ids)


async def test_a_default_prompt_beside_token_ids_is_told_with_the_way_out() -> None:
    method = Embedding(pooling="last", prompts={"query": "Find: "}, default_prompt="query")
    with serving(Uses(embedding=method)) as session:
        for arguments in ({"token_ids": [1, 2]}, {"texts": [{"role": "user", "content": "a"}]}):
            with pytest.raises(InvalidRequest, match=r"puts its prompt 'query', 'Find: ', before texts"):
                await session.embed(**arguments)
            assert len(await session.embed(**arguments, instruction="")) == 1
            with pytest.raises(InvalidRequest, match="an instruction applies to texts only"):
                await session.embed(**arguments, instruction="query")
        whole = await session.embed(token_ids=session.encode("Find: a"), instruction="")
        assert whole.tolist() == (await session.embed("a")).tolist()
        error = (await ask(app(session), "/v1/embeddings", {"input": [1, 2]})).error
        assert error["message"].startswith("the model puts its prompt 'query'")


def test_equal_stops_count_once() -> None:
    assert checks.distinct_texts("stop", ["a", "ab", "a"] * checks.MOST_TEXTS) == ("a", "ab")
    assert checks.distinct_texts("stop", "a") == ("a",)
