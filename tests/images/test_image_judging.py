"""Vectors and ranks of texts and images are those of sentence-transformers and of Qwen3-VL-Embedding's own code."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from PIL import Image

import rekindle
from rekindle.formats.images.sources import image_source
from rekindle.formats.images.writing import data_url
from rekindle.server import app
from tests.engine.pictured import VISION
from tests.images.test_image_ranking import SETTINGS, _with_yes
from tests.sentence_models import SYSTEM_PROMPT, illustrated_embedder, illustrated_ranker, square_images
from tests.unit.asgi import ask

pytestmark = pytest.mark.wide
ORIGIN: Final = VISION / "qwen3-vl"
IMAGES: Final[list[Any]] = [{"type": "image", "image": Image.fromarray(pixels)} for pixels in square_images(ORIGIN)]
QUERY: Final = "Find a picture of it."
WORDS: Final[Any] = {"type": "text", "text": "a picture"}
INPUTS: Final[list[Any]] = ["A ship at sea.", [IMAGES[0]], [IMAGES[1], WORDS]]


def golden(name: str) -> Any:
    """Return an array of the other libraries."""
    with np.load(ORIGIN / "judging.npz") as file:
        return file[name]


def opened(path: Path) -> Any:
    return rekindle.open_sync(path, **SETTINGS, precompile="lazy", progress=False)


def chats(*contents: Any) -> list[Any]:
    """Return texts, and conversations of one message with parts."""
    return [each if isinstance(each, str) else [{"role": "user", "content": each}] for each in contents]


def tokens_of(session: rekindle.Session, text: str) -> int:
    """Return the tokens of a text in the form of messages."""
    chat = session.embedding_chat(text)
    assert chat is not None
    return session.count_tokens(chat[0], chat_template_kwargs=chat[1])


def assert_same(vectors: Any, expected: Any) -> None:
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_texts_and_messages_are_conversations_as_the_files_say(tmp_path: Path) -> None:
    prompts: dict[str, Any] = {"prompts": {"query": QUERY}, "default_prompt_name": None}
    with opened(illustrated_embedder(ORIGIN, tmp_path / "model", prompts)) as session:
        for text in chats(*INPUTS):
            assert_same(
                session.embed_sync(text),
                golden("embed")[INPUTS.index(text if isinstance(text, str) else text[0]["content"])],
            )
        assert_same(session.embed_sync(chats(*INPUTS)), golden("embed"))
        assert_same(session.embed_sync(chats(*INPUTS), instruction="query"), golden("embed-query"))
        ranking = session.rerank_sync("A ship at sea.", [INPUTS[1], INPUTS[2]])
        vectors = np.stack([golden("embed-query")[0], *golden("embed")[1:]])
        np.testing.assert_allclose(ranking.scores, vectors[1:] @ vectors[0], atol=1e-5)
        with pytest.raises(rekindle.InvalidRequest, match="the messages have one"):
            session.embed_sync([{"role": "system", "content": "S"}, *chats([WORDS])[0]], instruction="query")


@pytest.mark.anyio
@pytest.mark.parametrize("default", [None, "default"])
async def test_texts_and_images_by_http_are_conversations_too(tmp_path: Path, default: str | None) -> None:
    prompts: dict[str, Any] = {"prompts": {"default": SYSTEM_PROMPT}, "default_prompt_name": default}
    expected = golden("embed-default" if default else "embed")
    url = {"type": "image_url", "image_url": {"url": data_url(image_source(IMAGES[1]["image"]))}}
    messages = [{"role": "user", "content": [url, WORDS]}]
    with opened(illustrated_embedder(ORIGIN, tmp_path / "model", prompts)) as session:
        for path, body in (("/v1/embeddings", {"input": INPUTS[0]}), ("/api/embed", {"input": INPUTS[0]})):
            reply = (await ask(app(session), path, body)).json
            vector = reply["embeddings"][0] if path == "/api/embed" else reply["data"][0]["embedding"]
            assert_same(vector, expected[0])
            counted = reply["prompt_eval_count"] if path == "/api/embed" else reply["usage"]["prompt_tokens"]
            assert counted == tokens_of(session, INPUTS[0])
        for chat, row in ((messages, 2), ([{"role": "user", "content": INPUTS[0]}], 0)):
            reply = (await ask(app(session), "/v1/embeddings", {"messages": chat})).json
            assert_same(reply["data"][0]["embedding"], expected[row])


def test_a_default_prompt_is_the_system_message_unless_there_is_one(tmp_path: Path) -> None:
    prompts: dict[str, Any] = {"prompts": {"default": SYSTEM_PROMPT, "query": QUERY}, "default_prompt_name": "default"}
    with opened(illustrated_embedder(ORIGIN, tmp_path / "model", prompts)) as session:
        assert_same(session.embed_sync(chats(*INPUTS)), golden("embed-default"))
        assert_same(session.embed_sync(chats(*INPUTS), instruction="query"), golden("embed-query"))
        assert_same(session.embed_sync(chats(*INPUTS), instruction=""), golden("embed"))
        system = {"role": "system", "content": QUERY}
        own = [[system, {"role": "user", "content": each}] for each in INPUTS]
        assert_same(session.embed_sync(own), golden("embed-query"))


def test_a_reranker_has_the_tokens_and_the_template_of_its_files(tmp_path: Path) -> None:
    with opened(illustrated_ranker(ORIGIN, tmp_path / "model")) as session:
        for name, instruction in (("rank", None), ("rank-own", "Other.")):
            options: Any = {"instruction": instruction, "activation": False}
            scores = session.rerank_sync("cats", [[IMAGES[0]], "a text"], **options).scores
            last = session.rerank_sync([IMAGES[1]], [[IMAGES[0], {"type": "text", "text": "and words"}]], **options)
            assert_same([*scores, *last.scores], golden(name))


@pytest.mark.parametrize("is_whole", [False, True])
def test_prompts_are_those_of_the_models_own_code(tmp_path: Path, is_whole: bool) -> None:
    """Give messages with the system message of the code, or leave this to the files of sentence-transformers."""
    default: dict[str, Any] = {"prompts": {"default": SYSTEM_PROMPT}, "default_prompt_name": "default"}
    path = illustrated_embedder(ORIGIN, tmp_path / "model", default)
    _with_yes(path / "tokenizer.json")
    if is_whole:
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
            (path / name).unlink()
    contents: list[Any] = [[{"type": "text", "text": "A ship at sea."}], [IMAGES[0]], [IMAGES[1], WORDS]]
    systems = [SYSTEM_PROMPT, SYSTEM_PROMPT, QUERY]
    messages: Any = [
        [{"role": "system", "content": system}, {"role": "user", "content": content}]
        for system, content in zip(systems, contents, strict=True)
    ]
    options: Any = {"chat_template_kwargs": {"add_generation_prompt": True}} if is_whole else {}
    with opened(path) as session:
        assert_same(session.embed_sync(messages, **options), golden("own_embed"))


def test_scores_are_those_of_the_rerankers_own_code(tmp_path: Path) -> None:
    path = illustrated_embedder(ORIGIN, tmp_path / "model", {})
    _with_yes(path / "tokenizer.json")
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (path / name).unlink()
    (path / "1_Pooling" / "config.json").unlink()
    documents: Any = [[IMAGES[0]], "a text", [IMAGES[1], {"type": "text", "text": "and words"}]]
    with opened(path) as session:
        assert_same(session.rerank_sync("cats", documents).scores, golden("own_rank"))
        query: Any = [IMAGES[1], {"type": "text", "text": "cats"}]
        assert_same(session.rerank_sync(query, documents, instruction="Other.").scores, golden("own_rank_other"))
