"""Rankings, scores, classes and pooled states over HTTP are the sessions, in the forms of Jina, Cohere and vLLM."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rekindle.core.text.tokenizer import Tokenizer, wrap
from rekindle.formats.checkpoints.uses import Activation, Classifier, Embedding, Uses
from rekindle.server import Limits, app
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask
from tests.unit.scripted import END, HERMES, tokenizer

pytestmark = pytest.mark.anyio

DOCUMENTS = ["Cows eat grass.", "Paris is the capital.", "Lyon"]
RANK: dict[str, Any] = {"query": "capital", "documents": DOCUMENTS}


@contextmanager
def serving(uses: Uses) -> Iterator[Session]:
    loaded = fake_loaded_engine(fake_limits(max_context=512, num_pages=128, page_size=16), tokenizer=tokenizer())
    with fake_session(replace(loaded, checkpoint=replace(loaded.checkpoint, uses=uses))) as session:
        yield session


def head(*labels: str, activation: Activation | None = None) -> Uses:
    weight = np.linspace(-0.01, 0.02, len(labels), dtype=np.float32)[:, None]
    return Uses(classifier=Classifier(weight, labels, activation or ("softmax" if labels[1:] else "sigmoid")))


@pytest.fixture
def ranker() -> Iterator[Session]:
    with serving(head("relevant")) as session:
        yield session


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_a_ranking_is_the_sessions_in_jinas_and_coheres_form(ranker: Session, path: str) -> None:
    reply = (await ask(app(ranker), path, RANK)).json
    expected = await ranker.rerank("capital", DOCUMENTS)
    assert reply["results"] == [
        {"index": each.index, "relevance_score": each.score, "document": {"text": each.document}} for each in expected
    ]
    assert reply["model"] == "fake"
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == expected.prompt_tokens > 100
    assert reply["meta"]["tokens"]["input_tokens"] == expected.prompt_tokens
    body = {**RANK, "documents": [{"text": each} for each in DOCUMENTS], "top_n": 2, "return_documents": False}
    short = (await ask(app(ranker), path, body)).json["results"]
    assert short == [{"index": each.index, "relevance_score": each.score} for each in expected.top(2)]


async def test_a_ranking_of_texts_is_a_list_as_of_text_embeddings_inference(ranker: Session) -> None:
    expected = await ranker.rerank("capital", DOCUMENTS)
    ranking = (await ask(app(ranker), "/rerank", {"query": "capital", "texts": DOCUMENTS})).json
    assert ranking == [{"index": each.index, "score": each.score} for each in expected]
    body = {"query": "capital", "texts": DOCUMENTS, "return_text": True, "top_n": 1}
    (best,) = (await ask(app(ranker), "/rerank", body)).json
    assert best["text"] == expected.best


async def test_the_options_of_a_ranking_are_the_sessions(ranker: Session) -> None:
    body = {**RANK, "instruction": "Find it", "max_tokens_per_doc": 4, "max_tokens_per_query": 3}
    expected = await ranker.rerank("cap", [each[:4] for each in DOCUMENTS], instruction="Find it")
    results = (await ask(app(ranker), "/rerank", body)).json["results"]
    assert {each["index"]: each["relevance_score"] for each in results} == dict(enumerate(expected.scores))
    assert [each["document"]["text"] for each in results] == [DOCUMENTS[each["index"]] for each in results]
    template_body = {**RANK, "chat_template_kwargs": {"instruction": "Find it"}}
    other = await ranker.rerank("capital", DOCUMENTS, instruction="Find it")
    results = (await ask(app(ranker), "/rerank", template_body)).json["results"]
    assert {each["index"]: each["relevance_score"] for each in results} == dict(enumerate(other.scores))


@pytest.mark.parametrize("field", [{"use_activation": False}, {"activation": False}, {"raw_scores": True}])
async def test_scores_without_the_activation_are_logits(ranker: Session, field: dict[str, bool]) -> None:
    probabilities = (await ranker.rerank("capital", DOCUMENTS)).scores
    logits = (await ranker.rerank("capital", DOCUMENTS, activation=False)).scores
    assert probabilities == pytest.approx([1 / (1 + np.exp(-each)) for each in logits])
    results = (await ask(app(ranker), "/rerank", {**RANK, **field})).json["results"]
    assert {each["index"]: each["relevance_score"] for each in results} == dict(enumerate(logits))
    pairs = (await ask(app(ranker), "/score", {"queries": "capital", "documents": DOCUMENTS, **field})).json
    assert [each["score"] for each in pairs["data"]] == list(logits)


async def test_logits_of_answers_need_two_log_probabilities() -> None:
    limits = fake_limits(max_context=512, num_pages=128, page_size=16, max_logprobs=1)
    backend = tokenizer().backend
    backend.add_tokens(["yes", "no"])
    words = Tokenizer(backend, chat_template=HERMES, eos_token=END)
    with fake_session(fake_loaded_engine(limits, tokenizer=words)) as session:
        assert len((await session.rerank("capital", DOCUMENTS)).scores) == 3
        refused = await ask(app(session), "/rerank", {**RANK, "use_activation": False})
        assert (refused.status, "raise max_logprobs in open()" in refused.error["message"]) == (400, True)
        assert session.error is None


async def test_a_document_loses_the_tokens_that_do_not_fit(ranker: Session) -> None:
    whole = await ranker.rerank("capital", ["Cows"])
    body = {**RANK, "truncate_prompt_tokens": whole.prompt_tokens}
    reply = (await ask(app(ranker), "/rerank", body)).json
    expected = await ranker.rerank("capital", [each[:4] for each in DOCUMENTS])
    assert {each["index"]: each["relevance_score"] for each in reply["results"]} == dict(enumerate(expected.scores))
    assert [each["document"]["text"] for each in reply["results"]] == [DOCUMENTS[each.index] for each in expected]
    long = {"query": "q", "texts": ["x" * 600, "y"]}
    assert (await ask(app(ranker), "/rerank", long)).status == 400
    assert len((await ask(app(ranker), "/rerank", {**long, "truncate": True})).json) == 2
    refused = await ask(app(ranker), "/rerank", {**RANK, "truncate_prompt_tokens": 5})
    assert (refused.status, refused.error["param"]) == (400, "truncate_prompt_tokens")
    assert "truncate_prompt_tokens must be at least" in refused.error["message"]


async def test_an_embedding_models_query_and_documents_are_cut_alone() -> None:
    with serving(Uses(embedding=Embedding("mean"))) as session:
        cut = await session.rerank("capital", DOCUMENTS, truncate_prompt_tokens=4)
        expected = await session.rerank("capi", [each[:4] for each in DOCUMENTS])
        whole = await session.rerank("capital", ["x" * 2000], truncate_prompt_tokens=-1)
    assert cut.scores == expected.scores
    assert (
        whole.prompt_tokens == len("capital") + session._engine.facts.preparer.prompts.capacity
    )  # no token is generated


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": DOCUMENTS}, "query is missing"),
        ({"query": "a"}, "documents is missing"),
        ({**RANK, "documents": []}, "documents must be a text or a list"),
        ({**RANK, "documents": [1]}, "documents must be a text or a list"),
        ({**RANK, "documents": ["a"] * 5}, "at most 4 texts, got 5"),
        ({**RANK, "top_n": -1}, "top_n must be at least 0, got -1"),
        ({**RANK, "rank_fields": ["title"]}, "rank_fields cannot be served"),
        ({**RANK, "documents": [""]}, "documents"),
    ],
)
async def test_a_body_that_ranks_nothing_is_refused_by_name(ranker: Session, body: Any, message: str) -> None:
    refused = await ask(app(ranker, limits=Limits(prompts=4)), "/rerank", body)
    assert refused.status == 400
    assert message in refused.error["message"]


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
async def test_pairs_are_scored_one_query_with_all_or_each_with_its_own(
    ranker: Session, names: tuple[str, str]
) -> None:
    first, second = names
    one = await ranker.rerank("capital", DOCUMENTS)
    reply = (await ask(app(ranker), "/score", {first: "capital", second: DOCUMENTS})).json
    assert [(each["index"], each["score"]) for each in reply["data"]] == list(enumerate(one.scores))
    assert reply["usage"]["total_tokens"] == one.prompt_tokens
    assert {each["object"] for each in reply["data"]} == {"score"}
    queries = ["capital", "river", "capital"]
    reply = (await ask(app(ranker), "/v1/score", {first: queries, second: DOCUMENTS})).json
    river = await ranker.rerank("river", DOCUMENTS)
    assert [each["score"] for each in reply["data"]] == [one.scores[0], river.scores[1], one.scores[2]]
    refused = await ask(app(ranker), "/score", {first: queries[:2], second: DOCUMENTS})
    assert refused.error["message"] == f"{first} must be one text, or as many as {second} (3), got 2"
    assert refused.error["param"] == first


async def test_an_embedding_model_scores_by_the_cosine_of_its_embeddings() -> None:
    with serving(Uses(embedding=Embedding("mean", True, {"query": "Find: "}))) as session:
        reply = (await ask(app(session), "/score", {"text_1": "capital", "text_2": DOCUMENTS})).json
        query, documents = await session.embed("Find: capital"), await session.embed(DOCUMENTS)
        assert [each["score"] for each in reply["data"]] == pytest.approx((documents @ query).tolist())
        pooled = (await ask(app(session), "/pooling", {"input": DOCUMENTS, "use_activation": False})).json
        raw = await session.embed(DOCUMENTS, normalize=False)
        assert [each["data"] for each in pooled["data"]] == raw.tolist()
        assert {each["object"] for each in pooled["data"]} == {"pooling"}
        packed = (await ask(app(session), "/v1/pooling", {"input": [[3, 1]], "encoding_format": "base64"})).json
        number = np.frombuffer(base64.b64decode(packed["data"][0]["data"]), "<f4")
        assert np.array_equal(number, await session.embed(token_ids=[3, 1]))


async def test_classes_have_labels_with_probabilities_or_logits() -> None:
    with serving(head("spam", "ham", "eggs")) as session:
        expected = await session.classify(DOCUMENTS)
        reply = (await ask(app(session), "/classify", {"input": DOCUMENTS})).json
        assert [each["label"] for each in reply["data"]] == [str(each) for each in expected]
        assert [each["probs"] for each in reply["data"]] == [list(each.probabilities) for each in expected]
        assert {each["num_classes"] for each in reply["data"]} == {3}
        assert reply["usage"]["prompt_tokens"] == sum(map(session.count_tokens, DOCUMENTS))
        raw = (await ask(app(session), "/v1/classify", {"input": DOCUMENTS[0], "use_activation": False})).json
        assert raw["data"][0]["probs"] == list(expected[0].logits)
        chat = [{"role": "user", "content": "Hello"}]
        of_chat = (await ask(app(session), "/classify", {"messages": chat})).json
        assert of_chat["data"][0]["probs"] == list((await session.classify([chat]))[0].probabilities)
        mixed = (await ask(app(session), "/classify", {"input": ["Lyon", [3, 1]]})).json
        assert mixed["data"][0]["probs"] == list(expected[2].probabilities)
        pooled = (await ask(app(session), "/pooling", {"input": DOCUMENTS})).json  # the model is for classes
        rows = [each["data"] for each in pooled["data"]]
        np.testing.assert_allclose(rows, [each.probabilities for each in expected], rtol=1e-6)
        state = (await ask(app(session), "/pooling", {"input": "Lyon", "task": "embed"})).json
        assert state["data"][0]["data"] == (await session.embed("Lyon")).tolist()


@pytest.mark.parametrize("activation", ["identity", "tanh"])
async def test_a_head_of_numbers_gives_numbers_in_all_calls(activation: Activation) -> None:
    number = np.tanh if activation == "tanh" else np.asarray
    with serving(head("rating", activation=activation)) as session:
        ranking = await session.rerank("capital", DOCUMENTS)
        logits = (await session.rerank("capital", DOCUMENTS, activation=False)).scores
        assert ranking.scores == pytest.approx(number(logits).tolist())
        results = (await ask(app(session), "/rerank", {**RANK, "use_activation": True})).json["results"]
        assert {each["index"]: each["relevance_score"] for each in results} == dict(enumerate(ranking.scores))
        pairs = (await ask(app(session), "/score", {"queries": "capital", "documents": DOCUMENTS})).json
        assert [each["score"] for each in pairs["data"]] == list(ranking.scores)
        classes = await session.classify(DOCUMENTS)
        expected = [number(each.logits).tolist() for each in classes]
        np.testing.assert_allclose([each.probabilities for each in classes], expected)
        results = (await ask(app(session), "/classify", {"input": DOCUMENTS})).json["data"]
        np.testing.assert_allclose([each["probs"] for each in results], expected)
        pooled = (await ask(app(session), "/pooling", {"input": DOCUMENTS})).json["data"]
        np.testing.assert_allclose([each["data"] for each in pooled], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/rerank", RANK, "needs 'yes' as one token"),
        ("/classify", {"input": "a"}, "has no head that classifies texts"),
        ("/pooling", {"input": "a", "task": "classify"}, "has no head that classifies texts"),
        ("/pooling", {"input": "a", "task": "token_embed"}, "task must be embed or classify"),
        ("/pooling", {"input": "a", "messages": [{"role": "user"}]}, "messages and input are both prompts"),
        ("/classify", {"input": []}, "input must be a text"),
    ],
)
async def test_what_a_model_cannot_judge_is_refused_with_the_reason(path: str, body: Any, message: str) -> None:
    with serving(Uses()) as session:
        refused = await ask(app(session), path, body)
    assert refused.status == 400
    assert message in refused.error["message"]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"truncate_prompt_tokens": 4}, [ord(each) for each in "Cows"]),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, [ord(each) for each in "ass."]),
        ({"truncate_prompt_tokens": 99}, [ord(each) for each in "Cows eat grass."]),
        ({"truncate_prompt_tokens": -1}, [ord(each) for each in "Cows eat grass."]),
    ],
)
async def test_texts_are_cut_to_a_number_of_tokens_from_either_side(
    texts: Session, fields: dict[str, Any], ids: list[int]
) -> None:
    expected = await texts.embed(token_ids=[texts.encode("".join(map(chr, ids)))])
    for body in ({"input": "Cows eat grass."}, {"input": [texts.encode("Cows eat grass.")]}):
        reply = (await ask(app(texts), "/v1/embeddings", {**body, **fields})).json
        assert [each["embedding"] for each in reply["data"]] == expected.tolist()
        assert reply["usage"]["prompt_tokens"] == len(ids)


async def test_a_text_without_an_answer_is_cut_to_the_whole_context(texts: Session) -> None:
    longest = texts.settings.max_context
    assert longest is not None
    text = "a" * (longest + 9)
    reply = (await ask(app(texts), "/v1/embeddings", {"input": text, "truncate_prompt_tokens": -1})).json
    assert reply["usage"]["prompt_tokens"] == longest
    assert (await ask(app(texts), "/api/embed", {"input": text})).json["prompt_eval_count"] == longest


async def test_special_tokens_stay_around_a_text_that_is_cut_or_are_left_out() -> None:
    ending = tokenizer()
    wrap(ending.backend, None, "<|im_end|>")
    loaded = fake_loaded_engine(fake_limits(), tokenizer=ending)
    with fake_session(loaded) as session:
        bare = session.encode("Cows eat")
        (end,) = set(ending.encode("Cows eat")) - set(bare)
        for fields, ids in (
            ({}, [*bare, end]),
            ({"truncate_prompt_tokens": 4}, [*bare[:3], end]),
            ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, [*bare[-3:], end]),
            ({"add_special_tokens": False}, bare),
        ):
            reply = (await ask(app(session), "/v1/embeddings", {"input": "Cows eat", **fields})).json
            assert [each["embedding"] for each in reply["data"]] == (await session.embed(token_ids=[ids])).tolist()
            assert reply["usage"]["total_tokens"] == len(ids)


async def test_conversations_are_embedded_as_their_template_writes_them(texts: Session) -> None:
    chat: Any = [{"role": "user", "content": "Cows"}]
    reply = (await ask(app(texts), "/v1/embeddings", {"messages": chat})).json
    assert [each["embedding"] for each in reply["data"]] == (await texts.embed([chat])).tolist()
    cut = (await ask(app(texts), "/v1/embeddings", {"messages": chat, "truncate_prompt_tokens": 2})).json
    ids = texts.encode(texts.render(chat))[:2]
    assert [each["embedding"] for each in cut["data"]] == (await texts.embed(token_ids=[ids])).tolist()


TALK: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
TURNS = f"<|im_start|>user\nhi{END}\n<|im_start|>assistant\nhello"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, f"{TURNS}{END}\n"),
        ({"add_generation_prompt": False}, f"{TURNS}{END}\n"),
        ({"add_generation_prompt": True}, f"{TURNS}{END}\n<|im_start|>assistant\n"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, f"{TURNS}{END}\n<|im_start|>assistant\n"),
        ({"continue_final_message": True}, TURNS),
        ({"continue_final_message": True, "add_generation_prompt": False}, TURNS),
        ({"add_special_tokens": True}, f"{TURNS}{END}\n{END}"),
    ],
)
async def test_a_pooled_conversation_ends_with_its_last_message_by_default(
    path: str, fields: dict[str, Any], text: str
) -> None:
    ending = tokenizer()
    wrap(ending.backend, None, END)
    limits = fake_limits(max_context=512, num_pages=128, page_size=16)
    loaded = fake_loaded_engine(limits, tokenizer=ending)
    with fake_session(replace(loaded, checkpoint=replace(loaded.checkpoint, uses=head("rating")))) as session:
        ids = session.encode(text)
        classes: Any = await session.classify(token_ids=ids)
        expected = [1.0] if path == "/v1/embeddings" else classes.probabilities  # a vector of one number, scaled
        reply = (await ask(app(session), path, {"messages": TALK, **fields})).json
        value = reply["data"][0]
        numbers = value.get("embedding") or value.get("probs") or value["data"]
        np.testing.assert_allclose(numbers, expected, rtol=1e-6)
        assert reply["usage"]["prompt_tokens"] == len(ids)


async def test_a_pooled_conversation_is_open_or_answered_but_not_both() -> None:
    with serving(head("rating")) as session:
        body = {"messages": TALK, "add_generation_prompt": True, "continue_final_message": True}
        refused = await ask(app(session), "/classify", body)
        assert (refused.status, "pass one of the two" in refused.error["message"]) == (400, True)
        text = {"input": "hi", "add_generation_prompt": False}
        assert (await ask(app(session), "/v1/embeddings", text)).status == 200  # a text has no turns


async def test_conversations_are_judged_without_an_answers_beginning() -> None:
    with serving(head("rating")) as session:
        closed, answered = session.encode(f"{TURNS}{END}\n"), session.encode(f"{TURNS}{END}\n<|im_start|>assistant\n")
        starts: dict[str, Any] = {"chat_template_kwargs": {"add_generation_prompt": True}}
        for options, ids in (
            ({}, closed),
            (starts, answered),
            ({"continue_final_message": True}, session.encode(TURNS)),
        ):
            one = await session.embed(TALK, normalize=False, **options)
            many = await session.embed([TALK, TALK], normalize=False, **options)
            expected = await session.embed(token_ids=ids, normalize=False)
            assert one.tolist() == many[0].tolist() == many[1].tolist() == expected.tolist()
            classes = await session.classify([TALK], **options)
            assert classes == [await session.classify(token_ids=ids)]
        whole = await session.perplexity(TALK)
        assert [each and each.token_id for each in whole.logprobs][1:] == closed[1:]


async def test_three_classes_rank_nothing() -> None:
    with serving(head("a", "b", "c")) as session:
        refused = await ask(app(session), "/score", {"text_1": "q", "text_2": "d"})
    assert refused.status == 400
    assert "needs a head with one class" in refused.error["message"]
