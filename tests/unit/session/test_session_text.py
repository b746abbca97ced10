"""A session turns text into token ids and back, for parameters that take ids."""

import copy
import pickle

import pytest

import rekindle
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session


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
