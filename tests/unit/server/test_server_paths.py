"""Errors for clients and lines of the log have no path of the server's machine."""

import logging
from pathlib import Path

import pytest

from rekindle.core.errors import ModelError
from rekindle.server.models.pool import _not_opened
from rekindle.server.tracing.log import without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no model '/srv/my models/b': there is no such directory", "no model 'b': there is no such directory"),
        ("/srv/models/b/config.json: text_config: rope", "config.json: text_config: rope"),
        ("[Errno 13] Permission denied: '/srv/models/x/'", "[Errno 13] Permission denied: 'x'"),
        ("~/models/b.gguf is cut, and /a/b (c) too.", "b.gguf is cut, and b (c) too."),
        ("C:\\\\models\\\\b.gguf: cut", "b.gguf: cut"),
        ("owner/name has no file; see https://host/a/b, 1/2 and/or models/x.gguf", None),
        ('read "/a b/c d.json", then go on', 'read "c d.json", then go on'),
    ],
)
def test_of_an_absolute_path_the_last_part_stays(text: str, expected: str | None) -> None:
    assert without_paths(OSError(text)) == (text if expected is None else expected)


def test_a_model_that_does_not_open_is_told_to_the_log_without_its_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = ModelError(f"no model {str(tmp_path / 'b')!r}: there is no such directory")
    with caplog.at_level(logging.ERROR, "rekindle.server"):
        api_error = _not_opened("b", error)
    assert api_error.status == 503
    assert str(tmp_path) not in api_error.message
    assert str(tmp_path) not in caplog.text
    assert "there is no such directory" in caplog.text
