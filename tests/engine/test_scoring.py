"""Scores of options, perplexities and ranks agree with the reference's log-probabilities."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from tests.engine.small import SMALL, SMOLLM2
from tests.sentence_models import classifier

QUESTION = "The capital of France is"
OPTIONS = [" Paris", " London, which is a city in England", " a"]
LONG = "A lighthouse keeper wrote every day in a blue book, and nobody ever read it. " * 6


@pytest.fixture(scope="module")
def session() -> Iterator[rekindle.Session]:
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, **SMOLLM2) as smollm2:
        yield smollm2
        assert smollm2.stats.unexpected_compilations == 0


def total_after(session: rekindle.Session, prompt: str, option: str) -> float:
    """Return the log-probability of an option after a text, from all scores of the whole."""
    answer = session.generate_sync(prompt + option, max_tokens=1, prompt_logprobs=0, cache_salt="apart")
    assert answer.prompt_logprobs is not None
    tail = answer.prompt_logprobs[session.count_tokens(prompt) :]
    return math.fsum(score.logprob for score in tail if score is not None)


@pytest.mark.parametrize("prompt", [pytest.param(QUESTION, marks=pytest.mark.wide), LONG + QUESTION])
def test_options_are_scored_as_the_ends_of_whole_texts(session: rekindle.Session, prompt: str) -> None:
    scores = session.score_sync(prompt, OPTIONS)
    expected = [total_after(session, prompt, option) for option in OPTIONS]
    np.testing.assert_allclose(scores.logprobs, expected, atol=1e-3)
    shares = np.exp(expected) / np.exp(expected).sum()
    np.testing.assert_allclose(scores.probabilities, shares, rtol=1e-3)
    for option, total in zip(scores.options, expected, strict=True):
        assert option.per_token == pytest.approx(total / len(session.encode(option.text)), abs=1e-3)
        assert option.per_byte == pytest.approx(total / len(option.text), abs=1e-3)
    assert scores.best == str(scores) == OPTIONS[int(np.argmax(expected))]
    by_token = [option.text for option in scores.ranked("token")]
    assert by_token == [OPTIONS[at] for at in np.argsort([-option.per_token for option in scores.options])]


def test_a_prompt_is_computed_once_for_all_options_and_again_for_none(session: rekindle.Session) -> None:
    prompt = "Nothing else begins so. " + LONG + QUESTION
    pages = (session.count_tokens(prompt) - 1) // 16 * 16
    before = session.stats.scheduler.computed_tokens
    first = session.score_sync(prompt, OPTIONS)
    assert first.cached_tokens == 2 * pages
    computed = session.stats.scheduler.computed_tokens - before
    assert computed < session.count_tokens(prompt) + 3 * 32
    again = session.score_sync(prompt, OPTIONS)
    assert again.cached_tokens == 3 * pages
    np.testing.assert_allclose(again.logprobs, first.logprobs, atol=1e-4)


@pytest.mark.wide
def test_spaces_at_the_end_of_the_text_are_the_options(session: rekindle.Session) -> None:
    apart = session.score_sync(f"{QUESTION} ", ["Paris", "London"])
    together = session.score_sync(QUESTION, [" Paris", " London"])
    np.testing.assert_allclose(apart.logprobs, together.logprobs, atol=1e-4)


@pytest.mark.wide
def test_one_option_of_greedy_tokens_is_greedy(session: rekindle.Session) -> None:
    answer = session.generate_sync(QUESTION, max_tokens=2, logprobs=0)
    scores = session.score_sync(QUESTION, answer.text)
    assert scores.options[0].greedy
    assert answer.logprobs is not None
    assert scores.logprobs[0] == pytest.approx(sum(token.logprob for token in answer.logprobs), abs=1e-3)
    assert not session.score_sync(QUESTION, " zebra").options[0].greedy
    assert scores.probabilities == (1.0,)


@pytest.mark.wide
def test_an_option_after_a_conversation_or_token_ids_follows_its_tokens(session: rekindle.Session) -> None:
    messages = [{"role": "user", "content": "Is fire hot?"}]
    of_chat = session.score_sync(messages, ["Yes", "No"])
    ids = session.encode(session.render(messages))
    of_ids = session.score_sync(token_ids=ids, options=["Yes", "No"])
    np.testing.assert_allclose(of_chat.logprobs, of_ids.logprobs, atol=1e-4)
    answer = session.generate_sync(token_ids=ids + session.encode("Yes"), max_tokens=1, prompt_logprobs=0)
    assert answer.prompt_logprobs is not None
    assert answer.prompt_logprobs[-1] is not None
    assert of_chat.logprobs[0] == pytest.approx(answer.prompt_logprobs[-1].logprob, abs=1e-3)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (QUESTION, [], "options is empty"),
        (QUESTION, [""], "options must be a text or a sequence of texts"),
        (QUESTION, 3, "options must be a text or a sequence of texts"),
        ("  ", [" a"], "the option ' a' adds no token after the prompt"),
        ("", [" a"], "the prompt is empty"),
        ([QUESTION], [" a"], "one prompt was expected"),
        (None, [" a"], "the prompt is None; give a text"),
    ],
)
def test_what_cannot_be_scored_is_refused(session: rekindle.Session, prompt: Any, options: Any, message: str) -> None:
    with pytest.raises(rekindle.InvalidRequest, match=message):
        session.score_sync(prompt, options)


def test_the_perplexity_of_a_text_is_that_of_the_reference(
    session: rekindle.Session, smollm2_goldens: list[dict[str, Any]]
) -> None:
    golden = max(smollm2_goldens, key=lambda each: len(each["prompt_ids"]))
    result = session.perplexity_sync(token_ids=golden["prompt_ids"])
    expected = -np.mean(golden["prompt_logprobs"])
    assert result.nll == pytest.approx(expected, abs=1e-3)
    assert result.perplexity == float(result) == pytest.approx(math.exp(expected), rel=1e-3)
    assert (result.scored, result.windows, result.bits_per_byte) == (len(golden["prompt_ids"]) - 1, 1, None)
    text = session.perplexity_sync(LONG)
    assert text.bits_per_byte == pytest.approx(text.nll * text.scored / math.log(2) / len(LONG))
    assert f"perplexity {text.perplexity:.4f}" in repr(text)


def test_windows_give_what_each_gives_by_itself(families: Path) -> None:
    ids = np.load(families / "qwen2" / "golden.npz")["input_ids"].reshape(-1).tolist() * 2
    with rekindle.open_sync(families / "qwen2", progress=False, precompile="lazy", **SMALL) as session:
        result = session.perplexity_sync(token_ids=ids, window=100, stride=40)
        expected: list[float] = []
        for begin in range(0, len(ids), 40):  # as the guide of transformers has it
            window = ids[begin : begin + 100]
            scores = session.generate_sync(token_ids=window, max_tokens=1, prompt_logprobs=0).prompt_logprobs
            assert scores is not None
            new = begin + len(window) - (len(expected) + 1 if expected else 1)
            expected += [score.logprob for score in scores[len(window) - new :] if score is not None]
            if begin + 100 >= len(ids):
                break
        assert result.scored == len(expected) == len(ids) - 1
        assert result.nll == pytest.approx(-np.mean(expected), abs=1e-5)
        assert result.windows == 1 + math.ceil((len(ids) - 100) / 40)
        whole = session.perplexity_sync(token_ids=ids[:200])
        assert (whole.windows, whole.scored) == (1, 199)
        bad: list[dict[str, Any]] = [{"window": 256}, {"window": 1}, {"stride": 0}, {"window": 50, "stride": 50}]
        for wrong in bad:
            with pytest.raises(rekindle.InvalidRequest, match=r"(window|stride) must be an integer from"):
                session.perplexity_sync(token_ids=ids, **wrong)
        with pytest.raises(rekindle.InvalidRequest, match="at least two tokens, but the text has 1"):
            session.perplexity_sync(token_ids=[1])


INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
DOCUMENTS = ["Paris is the capital of France.", "Cows eat grass.", "Lyon is in France."]


@pytest.mark.wide
def test_documents_are_ranked_by_the_probability_of_a_yes(session: rekindle.Session) -> None:
    ranking = session.rerank_sync("capital of France", DOCUMENTS, instruction="Find the answer")
    for document, score in zip(DOCUMENTS, ranking.scores, strict=True):
        text = f"<Instruct>: Find the answer\n<Query>: capital of France\n<Document>: {document}"
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        assert score == pytest.approx(session.score_sync(messages, ["yes", "no"]).probabilities[0], abs=1e-4)
    raw = session.rerank_sync("capital of France", DOCUMENTS, instruction="Find the answer", activation=False)
    np.testing.assert_allclose(1 / (1 + np.exp(-np.array(raw.scores))), ranking.scores, atol=1e-5)
    assert list(ranking.order) == np.argsort([-score for score in ranking.scores]).tolist()
    assert [each.document for each in ranking] == [DOCUMENTS[place] for place in ranking.order]
    assert ranking.best == ranking.top(1)[0].document
    assert len(session.rerank_sync("nothing", [])) == 0
    for wrong in ((3, DOCUMENTS), ("q", "a text"), ("q", [3]), ("q", [""])):
        with pytest.raises(rekindle.InvalidRequest):
            session.rerank_sync(*wrong)
    with pytest.raises(rekindle.InvalidRequest, match="has no head that classifies texts"):
        session.classify_sync("A cat.")


@pytest.mark.wide
def test_a_head_with_one_class_ranks_documents(families: Path, tmp_path: Path) -> None:
    classifier(families / "qwen3", tmp_path / "model", 1)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template, encoding="utf-8")
    with rekindle.open_sync(
        tmp_path / "model", progress=False, precompile="lazy", max_context=512, page_size=16
    ) as session:
        ranking = session.rerank_sync("q", DOCUMENTS)
        conversations = [
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"<Instruct>: {INSTRUCTION}\n<Query>: q\n<Document>: {document}"},
            ]
            for document in DOCUMENTS
        ]
        logits = [each.logits[0] for each in session.classify_sync(conversations)]
    np.testing.assert_allclose(ranking.scores, 1 / (1 + np.exp(-np.array(logits))), atol=1e-5)


def test_a_classifier_says_what_it_is_for_and_what_it_lacks(families: Path, tmp_path: Path) -> None:
    for labels, others in ((1, "embed(), classify() or rerank()"), (3, "embed() or classify()")):
        path = tmp_path / str(labels)
        classifier(families / "qwen3", path, labels)
        with rekindle.open_sync(path, progress=False, precompile="lazy", max_context=512, page_size=16) as session:
            with pytest.raises(rekindle.InvalidRequest) as raised:
                session.generate_sync("a")
            assert str(raised.value).endswith(f"use {others}")
            with pytest.raises(rekindle.InvalidRequest, match="the model has none: pass chat_template= to open"):
                session.rerank_sync("q", DOCUMENTS)
