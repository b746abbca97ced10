"""A session turns text into token ids and back, for parameters that take ids."""

import copy
import logging
import pickle
from typing import Any

import pytest

import rekindle
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.scripted import scripted_session


def test_a_text_becomes_ids_and_the_same_text_again(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as session:
        ids = session.encode("hé")
        assert len(ids) == 3, "one for each byte"
        assert session.decode(ids) == "hé"


def test_a_model_without_a_tokenizer_says_so() -> None:
    with fake_session() as session:
        with pytest.raises(rekindle.InvalidRequest, match="no tokenizer"):
            session.encode("hi")
        with pytest.raises(rekindle.InvalidRequest, match="no tokenizer"):
            session.decode([1])


def test_what_is_bound_to_a_process_says_what_to_pickle_instead(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as session:
        handle = session.submit("one", max_tokens=1)
        for thing, words in ((session, "open one in each process"), (handle, r"pickle its result\(\)")):
            for act in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=words):
                    act(thing)
        assert pickle.loads(pickle.dumps(handle.result())) == handle.result()


def test_encoding_what_is_no_text_says_what_to_call(byte_tokenizer: Tokenizer) -> None:
    message = r"encode\(\) takes a text, .* render\(\) turns messages into text"
    session = fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer))
    with session, pytest.raises(rekindle.InvalidRequest, match=message):
        session.encode([{"role": "user", "content": "a"}])  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["generate", "several", "submit", "chat"])
def test_answers_of_conversations_end_by_themselves(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an answer of more than the 256 tokens by default of texts."""
    answer, messages = " ".join(map(str, range(200))), [{"role": "user", "content": "Count"}]
    with scripted_session(monkeypatch, lambda _: answer) as session:
        calls = {
            "generate": lambda: session.generate_sync(messages),
            "several": lambda: session.generate_sync([messages])[0],
            "submit": lambda: session.submit(messages).result(),
            "chat": lambda: session.chat().say_sync("Count"),
        }
        generation: Any = calls[form]()
        assert (generation.text, generation.finish_reason) == (answer, "stop")
        assert len(generation.token_ids) > 256
        assert session.generate_sync(messages, max_tokens=5).finish_reason == "length"


def test_a_text_cut_by_the_default_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rekindle")
    note = "The answer was cut after 256 tokens: max_tokens= allows more. This note appears once per session."
    with fake_session(fake_loaded_engine(fake_limits(max_context=512)), progress=True) as session:
        session.generate_sync(token_ids=[1, 2], max_tokens=4)
        assert note not in caplog.messages, "the caller named the limit"
        for _ in range(2):
            assert len(session.generate_sync(token_ids=[1, 2]).token_ids) == 256
    assert caplog.messages.count(note) == 1
