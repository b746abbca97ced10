"""Sessions of shapes alone: refused calls, and the answers of their server."""

from typing import Any

import pytest

import rekindle
from rekindle.server.common.errors import api_error_of


def test_what_cannot_be_opened_without_weights_is_refused() -> None:
    wrong: Any = {"weights": "mine"}
    with pytest.raises(rekindle.ConfigError, match=r"weights must be one of 'auto', 'packed', .* \(update_weights"):
        rekindle.open("x", **wrong)
    others: list[Any] = [{"replicas": rekindle.Ray(1)}, {"hosts": rekindle.Hosts(1)}]
    for settings in others:
        with pytest.raises(rekindle.ConfigError, match="for a session in one process"):
            rekindle.open("x", weights=None, **settings)


def test_a_server_says_that_weights_are_to_come() -> None:
    answer = api_error_of(rekindle.NoWeights("none"), {})
    assert (answer.status, answer.message) == (503, "the model has no weights yet; retry later")
