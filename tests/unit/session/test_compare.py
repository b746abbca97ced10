"""One prompt under several settings: all at once, in columns, and nothing if one of them is wrong."""

import re
from typing import Any

import pytest

from rekindle import Comparison, InvalidRequest
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.cards import page_of

PROMPT = (3, 1, 4)


def test_each_setting_has_its_answer_and_its_column(session: Session) -> None:
    compared = session.compare_sync(None, [{}, {"max_tokens": 2}, {"ignore_eos": True}], token_ids=PROMPT, max_tokens=4)
    assert isinstance(compared, Comparison)
    whole = expected_tokens(PROMPT, 4)
    assert [answer.token_ids for answer in compared] == [whole, whole[:2], whole]
    assert compared.settings == [{}, {"max_tokens": 2}, {"ignore_eos": True}]
    text = page_of(compared).text
    for words in ("defaults", "max_tokens 2", "same as the first for 2 tokens", "same as the first for all tokens"):
        assert words in text


def test_settings_may_be_named_and_come_from_several_sessions(session: Session) -> None:
    with fake_session(fake_loaded_engine(fake_limits(page_size=16))) as other:
        settings = {"here": {}, "there": {"session": other}}
        compared = session.compare_sync(None, settings, token_ids=PROMPT, max_tokens=3)
        assert other.stats.scheduler.ended == session.stats.scheduler.ended == 1
    assert compared.names == ["here", "there"]
    assert compared.settings[1] == {"session": other.name}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "settings must be a list of mappings"),
        ("temperature", "settings must be a list of mappings"),
        ([{}, {"temperature": -1}], re.escape("settings 'temperature -1': temperature")),
        ([{}, {"temperatur": 1}], "unknown keyword 'temperatur'"),
        ({"a": {"session": 3}}, "session must be an open rekindle.Session, got 3"),
    ],
)
def test_one_wrong_setting_computes_nothing(session: Session, settings: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        session.compare_sync(None, settings, token_ids=PROMPT)
    assert session.stats.scheduler.ended == 0
    assert session.requests == {}
