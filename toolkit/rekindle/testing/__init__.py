"""Fake device with tokens computable by hand, for tests of everything around the real device.

    session = fake_session(max_running=2)
    generation = await session.generate(token_ids=[3, 1, 4], max_tokens=5)
    assert generation.token_ids == expected_tokens([3, 1, 4], 5)

The fake keeps pages and slots as the real step does, filled with token ids, and computes each next token from the
content of the pages. A plan with a wrong page, slot, position or order therefore produces a wrong token.
"""

from rekindle.testing.by_hand import ByHand, CheckedScheduler, fake_limits
from rekindle.testing.device import FakeSettler, FakeStepper
from rekindle.testing.grammar import VOCAB_SIZE, FakeGrammar, constrained
from rekindle.testing.model import (
    FAKE_MODEL,
    FAKE_STATE_MODEL,
    banned_tokens,
    draw_of,
    expected_of,
    expected_tokens,
    next_token,
    score_of,
    state_of,
)
from rekindle.testing.pictures import FakePixels, fake_picture
from rekindle.testing.session import fake_loaded_engine, fake_session
from rekindle.testing.tiers import FakeDiskTier, FakeHostTier

__all__ = [
    "FAKE_MODEL",
    "FAKE_STATE_MODEL",
    "VOCAB_SIZE",
    "ByHand",
    "CheckedScheduler",
    "FakeDiskTier",
    "FakeGrammar",
    "FakeHostTier",
    "FakePixels",
    "FakeSettler",
    "FakeStepper",
    "banned_tokens",
    "constrained",
    "draw_of",
    "expected_of",
    "expected_tokens",
    "fake_limits",
    "fake_loaded_engine",
    "fake_picture",
    "fake_session",
    "next_token",
    "score_of",
    "state_of",
]
