"""XLA's own log is silent while a session compiles, and only then."""

import pytest

from rekindle.core.device.programs.compiler_log import FATAL, Silence


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")


def test_the_log_is_back_when_the_last_of_several_compilations_has_ended() -> None:
    levels: list[int] = []
    silence = Silence(levels.append)
    with silence:
        with silence:
            assert levels == [FATAL]
        assert levels == [FATAL]
    assert levels == [FATAL, 1]


def test_a_level_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with Silence(levels.append):
        pass
    assert levels == []


def test_without_a_way_to_set_it_nothing_changes() -> None:
    with Silence(None):
        pass
