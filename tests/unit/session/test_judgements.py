"""Scores, perplexities, classes and ranks say what follows of log-probabilities, and show it without a model."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle import Classification, InvalidRequest, Perplexity, Ranking, Scores, TokenLogprob
from rekindle.core.request import checks
from rekindle.formats.checkpoints.uses import Embedding
from rekindle.results.scores.classes import sigmoid
from rekindle.results.scores.options import Option, softmax
from rekindle.scoring.embedding import prompt_prefix
from rekindle.scoring.likelihood import windows
from rekindle.testing import fake_session

NUMBER = st.floats(-700, 700)
HOSTILE = "<b>&\n" * 40


def token(logprob: float, rank: int = 1) -> TokenLogprob:
    return TokenLogprob(5, "a", logprob, rank, bytes=b"a")


SCORES = Scores(
    (
        Option("long option", (token(-1.0), token(-1.0), token(-1.5))),
        Option("é", (token(-3.0, rank=2),)),
    ),
    cached_tokens=64,
)


@given(st.lists(NUMBER, min_size=1, max_size=9))
def test_probabilities_are_one_in_sum_and_in_the_order_of_the_logits(logits: list[float]) -> None:
    shares = softmax(logits)
    assert math.fsum(shares) == pytest.approx(1)
    in_order = [shares[place] for place in sorted(range(len(logits)), key=lambda place: logits[place])]
    assert in_order == sorted(shares)


@given(NUMBER)
def test_a_class_and_its_contrary_are_one_in_sum(logit: float) -> None:
    assert sigmoid(logit) + sigmoid(-logit) == pytest.approx(1)
    assert (sigmoid(logit) > 0.5) == (logit > 0) or abs(logit) < 1e-12


def test_options_are_compared_as_a_whole_by_token_or_by_byte() -> None:
    long, short = SCORES.options
    assert SCORES.logprobs == (-3.5, -3.0)
    assert (long.per_token, long.per_byte) == (-3.5 / 3, -3.5 / 11)
    assert (short.per_token, short.per_byte) == (-3.0, -1.5)
    assert [option.greedy for option in SCORES.options] == [True, False]
    assert SCORES.best == "é"
    assert SCORES.ranked("token") == SCORES.ranked("byte") == [long, short]
    assert repr(SCORES.ranked("token")[1]) == "<Option 'é': logprob -3.000, 1 token>"
    wrong: Any = "bytes"
    with pytest.raises(InvalidRequest, match="by must be one of 'total', 'token', 'byte', got 'bytes'"):
        SCORES.ranked(wrong)
    same = Scores((long, replace(long, text="other option")))
    assert same.ranked() == list(same.options)


def test_a_perplexity_is_that_of_the_scored_tokens() -> None:
    perplexity = Perplexity((None, token(-1.0), token(-3.0)), windows=1, text_bytes=8)
    assert (perplexity.scored, perplexity.total, perplexity.nll) == (2, -4.0, 2.0)
    assert perplexity.perplexity == float(perplexity) == math.exp(2)
    assert perplexity.bits_per_byte == pytest.approx(4 / math.log(2) / 8)
    assert replace(perplexity, text_bytes=None).bits_per_byte is None


def test_a_ranking_is_in_order_and_equal_documents_stay_in_theirs() -> None:
    ranking = Ranking("q", ("a", "b", "c", "d"), (0.2, 0.9, 0.9, 0.1))
    assert ranking.order == (1, 2, 0, 3)
    assert ranking.best == "b"
    assert [(each.index, each.document, each.score) for each in ranking.top(2)] == [(1, "b", 0.9), (2, "c", 0.9)]
    assert [each.index for each in ranking] == [1, 2, 0, 3]
    assert ranking.top(9) == list(ranking)
    with pytest.raises(InvalidRequest, match="count must be an integer from 0"):
        ranking.top(-1)
    with pytest.raises(IndexError, match="has no documents"):
        _ = Ranking("q", (), ()).best


@pytest.mark.parametrize(
    ("result", "plain"),
    [
        (SCORES, "<rekindle.Scores: 2 options, best 'é'>"),
        (Scores((Option(HOSTILE, (token(-1.0),)),)), "<rekindle.Scores: 1 option"),
        (
            Perplexity((None, token(-1.0)), 1, 4),
            "<rekindle.Perplexity: perplexity 2.7183, nll 1.0000, bits per byte 0.3607",
        ),
        (Perplexity((None, token(-1.0)), 1), "nll 1.0000, tokens scored 1, windows 1>"),
        (Classification(("spam", "ham"), (1.0, -1.0), "softmax"), "<rekindle.Classification: spam 88"),
        (Classification((HOSTILE,), (0.0,), "sigmoid"), "50"),
        (Ranking(HOSTILE, (HOSTILE, "b"), (0.2, 0.9)), "<rekindle.Ranking of 2 documents for"),
        (Ranking("q", ("a", "b"), (0.2, 0.9)), "   1     90.0%  b"),
        (Ranking("q", ("a", "b"), (-0.059, 0.796), measure="cosine"), "   1     0.796  b\n   2    -0.059  a"),
    ],
)
def test_a_cell_shows_them_as_text_and_as_html_that_runs_nothing(result: Any, plain: str) -> None:
    bundle = result._repr_mimebundle_()
    assert plain in bundle["text/plain"] == repr(result)
    assert type(result).__name__ in bundle["text/html"]
    assert "<b>&\n" not in bundle["text/html"]
    assert all(len(line) < 700 for line in repr(result).splitlines())


def test_classes_that_are_independent_have_probabilities_of_their_own() -> None:
    one_of = Classification(("a", "b"), (2.0, 2.0), "softmax")
    each = replace(one_of, activation="sigmoid")
    assert one_of.probabilities == (0.5, 0.5)
    assert each.probabilities == (sigmoid(2.0), sigmoid(2.0))
    assert (one_of.independent, each.independent) == (False, True)
    assert str(one_of) == one_of.best == "a"


def test_a_regression_has_numbers_in_place_of_probabilities() -> None:
    numbers = Classification(("rating",), (4.2,), "identity")
    assert numbers.probabilities == (4.2,)
    assert repr(numbers) == "<rekindle.Classification: rating 4.2>"
    bounded = replace(numbers, activation="tanh")
    assert bounded.probabilities == (math.tanh(4.2),)


@given(tokens=st.integers(2, 300), window=st.integers(2, 90), data=st.data())
def test_windows_score_each_token_once_with_as_much_before_it_as_they_promise(
    tokens: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window - 1))
    done = 1
    for place, each in enumerate(windows(range(tokens), window, stride)):
        begin = place * stride
        assert each.token_ids == tuple(range(begin, min(begin + window, tokens)))
        assert begin + each.first == done, "each token is scored by the first window that has it"
        assert each.first >= (window - stride if place else 1)
        done = begin + len(each.token_ids)
    assert done == tokens


def test_an_instruction_is_a_name_or_a_text() -> None:
    own = Embedding(prompts={"query": "Q: ", "document": ""}, default_prompt="query")
    assert [prompt_prefix(own, each) for each in (None, "query", "document", "", "Find: ")] == [
        "Q: ",
        "Q: ",
        "",
        "",
        "Find: ",
    ]
    with pytest.raises(InvalidRequest, match="no instruction named 'quary'"):
        prompt_prefix(own, "quary")


def test_there_may_be_many_texts_to_judge_and_long_ones() -> None:
    long, many = "word " * 2000, ["a"] * 300
    assert checks.long_texts("documents", [long]) == (long,)
    assert checks.long_texts("documents", many) == tuple(many)
    with pytest.raises(InvalidRequest, match=r"none of them empty, got .* which has '' in place 300"):
        checks.long_texts("documents", [*many, ""])
    with pytest.raises(InvalidRequest, match="at most 256 texts, got 300"):
        checks.texts("stop", many)


def test_a_model_without_a_tokenizer_says_what_it_lacks() -> None:
    with fake_session() as session:
        for ask in (
            lambda: session.score_sync(token_ids=[1], options=["a"]),
            lambda: session.perplexity_sync("text"),
            lambda: session.rerank_sync("q", ["a"]),
            lambda: session.embed_sync("text"),
        ):
            with pytest.raises(InvalidRequest, match="the model has no tokenizer"):
                ask()
        assert session.embed_sync(token_ids=[[1], [2, 3]], normalize=False).tolist() == [[2.0], [8.0]]
