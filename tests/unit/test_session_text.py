"""A session turns text into token ids and back, for parameters that take ids."""

import pytest

import rekindle
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.testing import fake_assembly, fake_limits, fake_session


def test_a_text_becomes_ids_and_the_same_text_again(byte_tokenizer: Tokenizer) -> None:
    with fake_session(fake_assembly(fake_limits(), tokenizer=byte_tokenizer)) as session:
        ids = session.encode("hé")
        assert len(ids) == 3, "one for each byte"
        assert session.decode(ids) == "hé"


def test_a_model_without_a_tokenizer_says_so() -> None:
    with fake_session() as session:
        with pytest.raises(rekindle.InvalidRequest, match="no tokenizer"):
            session.encode("hi")
        with pytest.raises(rekindle.InvalidRequest, match="no tokenizer"):
            session.decode([1])
