"""A text without the chat template is mentioned once per session, and where it is no mistake, never."""

import logging
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from rekindle.client.calls.checks import TEMPLATE_NOTE
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.command_line import TEMPLATE

CHAT = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    """Log from INFO on, as a script does whose notes are wanted; under pytest, nobody looks at stderr."""
    caplog.set_level(logging.INFO, logger="rekindle")


def open_session(byte_tokenizer: Tokenizer, template: str | None = TEMPLATE, *, progress: bool = True) -> Session:
    """Open the fake device with a chat template, and "!" for a special token."""
    backend = Backend.from_str(byte_tokenizer.backend.to_str())
    backend.add_special_tokens(["!"])
    loaded = fake_loaded_engine(fake_limits(), tokenizer=Tokenizer(backend, template))
    return fake_session(loaded, progress=progress)


@pytest.mark.parametrize("prompt", ["Hello", ["Hello", "You"], [CHAT, CHAT, "Hello"]])
def test_it_appears_once(byte_tokenizer: Tokenizer, prompt: Any, caplog: pytest.LogCaptureFixture) -> None:
    with open_session(byte_tokenizer) as session:
        session.generate_sync(prompt, max_tokens=2)
        assert caplog.messages.count(TEMPLATE_NOTE) == 1
        caplog.clear()
        for _ in range(2):
            session.show_sync("Hello", max_tokens=2)
            session.generate_sync(["Hello"], max_tokens=2)
            list(session.stream_sync("Hello", max_tokens=2))
        assert TEMPLATE_NOTE not in caplog.messages


def test_it_does_not_appear_where_a_text_is_meant(byte_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    with open_session(byte_tokenizer) as session:
        session.generate_sync(CHAT, max_tokens=2)
        session.chat().say_sync("Hello", max_tokens=2)
        session.generate_sync(token_ids=[1, 2], max_tokens=2)
        session.generate_sync("Hello", max_tokens=0, prompt_logprobs=0)
        session.generate_sync("Hello", add_special_tokens=False, max_tokens=2)
        session.generate_sync(session.render(CHAT) + "!", max_tokens=2)
        session.submit("Hello", max_tokens=2).result()
        with session.prefix_sync("Hello") as prefix:
            prefix.generate_sync(" you", max_tokens=2)
    with open_session(byte_tokenizer, None) as plain:
        plain.generate_sync("Hello", max_tokens=2)
    with open_session(byte_tokenizer, progress=False) as quiet:
        quiet.generate_sync("Hello", max_tokens=2)
    assert TEMPLATE_NOTE not in caplog.messages
