"""Stop strings reach sessions, special tokens, cancels and the scheduler; test_stop_strings_property.py says where."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any, Unpack

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from rekindle.client.handle import Handle
from rekindle.core.engine.actor import Actor
from rekindle.core.messages import Message, Output, Outputs, Stopped, Text, Texts
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.tokens import EndReason, TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import ByHand, expected_of, expected_tokens, fake_limits, fake_loaded_engine
from tests.unit.stages import Stages, request_of

PROMPT = (3, 1, 4)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def letters(byte_tokenizer: Tokenizer) -> dict[str, Any]:
    """Return options for answers of letters: each token is one character, and none comes twice."""
    return {"allowed_token_ids": byte_tokenizer.encode(LETTERS), "repetition_penalty": 2.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def tokens(letters: dict[str, Any]) -> tuple[int, ...]:
    """Return the tokens after `PROMPT` without a stop."""
    options: Any = letters
    return expected_of(request_of(PROMPT, options, capacity=100))


@pytest.fixture(scope="module")
def text(tokens: tuple[int, ...], byte_tokenizer: Tokenizer) -> str:
    text = byte_tokenizer.decode(tokens)
    assert len(set(text) & set(LETTERS)) == len(text) == 12
    return text


def test_the_text_ends_before_the_stop_and_the_tokens_after_it(
    texts: Session, letters: dict[str, Any], tokens: tuple[int, ...], text: str
) -> None:
    generation = texts.generate_sync(token_ids=PROMPT, **letters, stop=text[3:6])
    assert (generation.text, generation.token_ids) == (text[:3], tokens[:6])
    assert (generation.finish_reason, generation.stopped_by) == ("stop", text[3:6])
    assert generation.usage.completion_tokens == 6
    with_stop = texts.generate_sync(token_ids=PROMPT, **letters, stop=text[3:6], keep_stop=True)
    assert (with_stop.text, with_stop.token_ids) == (text[:6], tokens[:6])
    assert (with_stop.finish_reason, with_stop.stopped_by) == ("stop", text[3:6])


def test_a_stream_holds_back_what_may_begin_a_stop(texts: Session, letters: dict[str, Any], text: str) -> None:
    """Check also the later piece with the held characters, when they do not become a stop."""
    stop = text[3:5] + "!"
    pieces = [piece.text for piece in texts.stream_sync(token_ids=PROMPT, **letters, stop=stop)]
    assert "".join(pieces) == text
    assert pieces[3:6] == ["", "", text[3:6]]
    pieces = [piece.text for piece in texts.stream_sync(token_ids=PROMPT, **letters, stop=text[3:6])]
    assert pieces == [*text[:3], "", "", ""]


def test_a_stop_that_an_end_token_completes_is_a_stop(
    texts: Session, letters: dict[str, Any], tokens: tuple[int, ...], text: str
) -> None:
    generation = texts.generate_sync(token_ids=PROMPT, **letters, stop=text[3:6], stop_token_ids=[tokens[5]])
    assert (generation.text, generation.token_ids, generation.stopped_by) == (text[:3], tokens[:6], text[3:6])
    generation = texts.generate_sync(token_ids=PROMPT, **letters, stop=text[3:7], stop_token_ids=[tokens[5]])
    assert (generation.text, generation.token_ids, generation.stopped_by) == (text[:6], tokens[:6], tokens[5])


def test_a_stop_is_found_however_it_is_tokenized_and_not_in_the_prompt(
    texts: Session, byte_tokenizer: Tokenizer
) -> None:
    """Check this because another engine found stops only as `encode(stop)`."""
    newline: dict[str, Any] = {"allowed_token_ids": byte_tokenizer.encode("\n"), "max_tokens": 9}
    generation = texts.generate_sync("\n\n\n", **newline, stop=["\n\n\n", "never"])
    assert (generation.text, len(generation.token_ids), generation.stopped_by) == ("", 3, "\n\n\n")
    generation = texts.generate_sync("\n\n\n", **newline, stop="\n\n", min_tokens=5)
    assert (generation.text, len(generation.token_ids), generation.stopped_by) == ("\n\n\n", 5, "\n\n")


# Between the stages


def answers_of(actor: Actor, message: Message) -> list[Message]:
    answers = actor.handle(message)
    assert isinstance(answers, Iterable)
    return [*answers]


@pytest.fixture
def detokenizer(byte_tokenizer: Tokenizer) -> Actor:
    return fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer).lanes[0].actors.detokenizer


def output_of(ids: tuple[int, ...], end: EndReason | None, stop: str, tokenizer: Tokenizer) -> Outputs:
    """Make an output of several tokens at once, each with its log-probability."""
    texts = map(tokenizer.decode, ([token] for token in ids))
    scores = tuple(TokenLogprob(t, text, -1.0, 1, (), text.encode()) for t, text in zip(ids, texts, strict=True))
    return Outputs((Output(request_of(PROMPT, {"stop": stop}, capacity=100), ids, end, scores),))


@pytest.mark.parametrize("end", [None, "length", "stop"])
def test_an_output_of_several_tokens_is_cut_at_the_one_that_completes_a_stop(
    byte_tokenizer: Tokenizer, detokenizer: Actor, end: EndReason | None
) -> None:
    for stop in ("b", "bc"):
        ids, count = tuple(byte_tokenizer.encode("abcd")), 1 + len(stop)
        output = output_of(ids, end, stop, byte_tokenizer)
        (first,) = output.outputs
        text = Text(0, "a", ids[:count], "stop", stop, first.logprobs[:count])
        assert answers_of(detokenizer, output) == [Texts((text,)), Stopped(0, count)]
        if end is None:
            later = replace(first, token_ids=(1,), logprobs=()), Output(first.request, (), "stop")
            assert answers_of(detokenizer, Outputs(later)) == []
        assert not vars(detokenizer)["_growing_texts"]


def test_an_output_of_several_tokens_without_a_stop_is_whole(byte_tokenizer: Tokenizer, detokenizer: Actor) -> None:
    ids = tuple(byte_tokenizer.encode("abcd"))
    ends: list[tuple[EndReason, int | None]] = [("length", None), ("stop", ids[-1])]
    for end, by in ends:
        output = output_of(ids, end, "de", byte_tokenizer)
        scores = output.outputs[0].logprobs
        text = Text(0, "abcd", ids, end, by, scores, end_token=None if by is None else "d")
        assert answers_of(detokenizer, output) == [Texts((text,))]
        assert not vars(detokenizer)["_growing_texts"]


# Special tokens


@pytest.fixture(scope="module")
def chat_tokenizer(byte_tokenizer: Tokenizer) -> Tokenizer:
    """Make the tokenizer of bytes with a special token for the end of a message."""
    backend = Backend.from_str(byte_tokenizer.backend.to_str())
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(backend)


def texts_of(
    tokenizer: Tokenizer, answer: str, end: EndReason | None, **options: Unpack[SamplingOptions]
) -> tuple[list[Text], bool]:
    """Detokenize a text token by token; return the texts for callers, and whether the request was stopped."""
    detokenizer = fake_loaded_engine(fake_limits(), tokenizer=tokenizer).lanes[0].actors.detokenizer
    request, ids = request_of(PROMPT, options, capacity=100), tokenizer.encode(answer)
    ends = [None] * (len(ids) - 1) + [end]
    messages = [
        message
        for token, ended in zip(ids, ends, strict=True)
        for message in answers_of(detokenizer, Outputs((Output(request, (token,), ended),)))
    ]
    texts = [text for message in messages if isinstance(message, Texts) for text in message.texts]
    return texts, any(isinstance(message, Stopped) for message in messages)


def test_a_stop_may_be_or_contain_a_special_token_that_the_text_leaves_out(chat_tokenizer: Tokenizer) -> None:
    cases: list[tuple[Any, bool, str, int]] = [
        ("<|end|>", False, "ab", 3),
        ("<|end|>", True, "ab<|end|>", 3),
        ("b<|end|>c", False, "a", 4),
        ("b<|end|>c", True, "ab<|end|>c", 4),
        ("|end|>", False, "ab", 3),
        (["<|end|>x", "cd"], False, "ab", 5),
        (["<|end|>x", "cd"], True, "abcd", 5),
    ]
    for stop, keep_stop, text, tokens in cases:
        texts, stopped = texts_of(chat_tokenizer, "ab<|end|>cde", None, stop=stop, keep_stop=keep_stop)
        assert stopped
        assert "".join(each.text for each in texts) == text
        assert sum(len(each.token_ids) for each in texts) == tokens
        assert (texts[-1].end, texts[-1].stopped_by) == ("stop", stop if isinstance(stop, str) else "cd")


def test_a_stop_that_is_the_text_of_an_end_token_is_what_stopped_it(chat_tokenizer: Tokenizer) -> None:
    texts, _ = texts_of(chat_tokenizer, "ab<|end|>", "stop", stop="<|end|>")
    assert (texts[-1].end, texts[-1].stopped_by) == ("stop", "<|end|>")
    texts, _ = texts_of(chat_tokenizer, "ab<|end|>", "stop", stop="never")
    assert (texts[-1].end, texts[-1].stopped_by) == ("stop", texts[-1].token_ids[0])


def test_special_tokens_are_in_the_text_where_they_are_not_skipped(chat_tokenizer: Tokenizer) -> None:
    answer = "a<|end|>b<|end|>"
    for stop, skip in product((None, "<|end|>x", "e<|end|>"), (False, True)):
        texts, stopped = texts_of(chat_tokenizer, answer, "length", stop=stop, skip_special_tokens=skip)
        assert ("".join(each.text for each in texts), stopped) == ("ab" if skip else answer, False)


def test_nothing_more_is_computed_for_a_request_that_a_stop_ended(
    byte_tokenizer: Tokenizer, letters: dict[str, Any], text: str
) -> None:
    """Allow for the ticks in flight: their tokens are surplus."""
    stages = Stages(byte_tokenizer)
    handle = stages.ask(PROMPT, **{**letters, "max_tokens": 4000}, stop=text[3:6])
    stages.run(lambda ready: ready - 1)
    assert len(handle.result().token_ids) == 6
    stats = stages.assert_nothing_is_left()
    assert (stats.generated_tokens, stats.ended) == (6, 1)
    assert stats.ticks <= 6 + 2 * stages.limits.depth


def state_of(handle: Handle) -> str:
    return repr(handle).removeprefix("<rekindle.Handle ").removesuffix(">")


def test_half_a_character_at_the_end_is_no_text_and_no_stop(byte_tokenizer: Tokenizer) -> None:
    begin, _ = byte_tokenizer.encode("é")
    stages = Stages(byte_tokenizer, overlap=False)
    half = stages.ask(PROMPT, allowed_token_ids=[begin], max_tokens=1, stop="\ufffd")
    stages.run()
    assert (half.result().text, half.result().stopped_by, half.result().cut) == ("", None, b"\xc3")
    assert "1 token, in the middle of a character" in repr(half.result())
    handle = stages.ask(PROMPT, allowed_token_ids=[begin], max_tokens=9, stop="\ufffd")
    while state_of(handle) != "running, 1 token":
        stages.step(lambda ready: ready - 1)
    handle.cancel()
    stages.run()
    assert state_of(handle) == "cancelled, 1 token"


@pytest.mark.parametrize("cancelled", ["before", "with the stop on its way", "after the caller has all"])
def test_whichever_comes_first_of_a_cancel_and_a_stop_ends_the_request(
    byte_tokenizer: Tokenizer, letters: dict[str, Any], text: str, cancelled: str
) -> None:
    stages = Stages(byte_tokenizer, overlap=cancelled.startswith("after"))
    handle = stages.ask(PROMPT, **letters, stop=text[3:6])
    while not handle.done if cancelled.startswith("after") else state_of(handle) != "running, 5 tokens":
        stages.step(lambda ready: ready - 1)
    handle.cancel()
    stages.run((lambda ready: 0) if cancelled == "before" else (lambda ready: ready - 1))
    assert state_of(handle) == ("cancelled, 5 tokens" if cancelled == "before" else "ended: stop, 6 tokens")
    if cancelled != "before":
        assert handle.result().text == text[:3]
    stages.assert_nothing_is_left()


def test_a_stop_ends_its_request_alone_and_what_came_after_it_is_not_counted() -> None:
    engine = ByHand()
    for request_id in (0, 1):
        engine.admit(request_id, PROMPT, max_tokens=9)
    while len(engine.tokens[0]) < 4:
        engine.settle()
    engine.say(Stopped(0, 3))
    assert engine.ends == {0: "stop"}
    engine.drain()
    assert engine.tokens[1] == list(expected_tokens(PROMPT, 9))
    stats = engine.scheduler.stats
    assert (stats.generated_tokens, stats.ended, stats.free_pages) == (3 + 9, 2, stats.pages)


def test_a_stop_for_a_request_that_ended_or_never_was_is_nothing() -> None:
    engine = ByHand()
    engine.admit(0, PROMPT, max_tokens=2)
    engine.drain()
    before = engine.scheduler.stats
    for request_id in (0, 7):
        assert engine.say(Stopped(request_id, 1)) == []
    assert engine.scheduler.stats == before
    assert engine.ends == {0: "length"}


def test_a_stop_reaches_a_request_that_waits_for_pages_again() -> None:
    engine = ByHand(page_size=16, num_pages=4, max_running=2)
    for request_id in (0, 1):
        engine.admit(request_id, [5] * 15, max_tokens=30)
    while not engine.scheduler.stats.preemptions:
        engine.settle()
    engine.say(Stopped(1, 1))
    assert engine.ends == {1: "stop"}
    engine.drain()
    stats = engine.scheduler.stats
    assert (stats.waiting, stats.generated_tokens, stats.free_pages) == (0, 1 + 30, stats.pages)
