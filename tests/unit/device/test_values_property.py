"""Whatever value a call gives a parameter is refused at the call, or runs to its end; none harms the engine."""

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.device.packing import pack_adjustments, pack_sampling
from rekindle.core.errors import InvalidRequest, ParametersIgnored
from rekindle.core.messages import Admit
from rekindle.core.messages.record import MessageRecord
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.request import Request
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, fake_limits, fake_loaded_engine, fake_session
from rekindle.testing.model import FAKE_MODEL

PROMPT = [3, 1, 4]
HIDDEN = FAKE_MODEL.hidden_size
NAMES = sorted(SamplingOptions.__annotations__)
INTEGERS = [0, 1, 2, -1, 250, 251, 2**30, 2**31 - 1, 2**31, 2**63, 2**64 - 1, 2**64, 10**400]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1e-6, 5e-324, 1e-40, 3.5e38, 1e39, 1e300, -1e300, math.inf, -math.inf, math.nan]
KINDS = [np.int8, np.uint64, np.float16, np.float32, np.float64, np.longdouble, np.bool_, np.array, Fraction, Decimal]
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(INTEGERS),
    st.integers(-3, 260),
    st.integers(),
    st.sampled_from(FLOATS),
    st.floats(0, 1),
    st.floats(),
    st.sampled_from(
        [None, True, False, 1j, object(), "", " ", "a", "12", "left", "\ud800", "\ufffd", b"a", "a" * 5000]
    ),
    st.text(max_size=4),
    st.builds(lambda kind, value: kind(value), st.sampled_from(KINDS), st.sampled_from([0, 1, 2, 100])),
    st.sampled_from([np.float64(1e300), np.float32(5e-324), np.longdouble("1e4000"), np.float16(np.inf)]),
)
KEYS = st.integers(-2, 260) | st.sampled_from([None, True, 1.0, "7", "x", 2**70]) | st.text(max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner),
        st.dictionaries(KEYS, inner, max_size=4),
        st.lists(st.integers(0, 260), max_size=4).map(np.array),
        st.sets(st.integers(0, 260), max_size=300),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=24, logits_processor=lambda logits, row: logits)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        one = np.ones((1, 1), np.float32)
        tensors = {f"model.layers.0.self_attn.q_proj.lora_{side}": one for side in "AB"}
        session.add_adapter_sync("a", tensors=tensors, config={"r": 1, "lora_alpha": 1})
        yield session


def beside(name: str) -> dict[str, Any]:
    """Return the options required by a parameter."""
    options: dict[str, dict[str, Any]] = {
        "logprobs_of": {"logprobs": 0},
        "truncation_side": {"truncate_prompt_tokens": 5},
        "keep_stop": {"stop": "x"},
    }
    return options.get(name, {})


def is_served(session: Session, options: dict[str, Any]) -> bool:
    """Serve a call with some options, and return False if it is refused; pack its request as for the real device."""
    admitted: list[Request] = []

    def see(record: MessageRecord) -> None:
        admitted.extend(answer.request for answer in record.answers if isinstance(answer, Admit))

    with session.watch(see):
        try:
            generation = session.generate_sync(token_ids=PROMPT, **options)
        except (InvalidRequest, ParametersIgnored):
            return False
    assert generation.token_ids or options.get("max_tokens") == 0
    for request in admitted:
        assert np.isfinite(pack_sampling(request)[:6].view(np.float32)).all()
        pack_adjustments(request, generation.token_ids, VOCAB_SIZE)
    return True


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(value=VALUES)
def test_a_value_is_refused_or_served(session: Session, name: str, value: Any) -> None:
    is_served(session, beside(name) | {name: value})


@settings(max_examples=150)
@given(options=st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=2, max_size=4))
def test_values_together_are_refused_or_served(session: Session, options: dict[str, Any]) -> None:
    is_served(session, options)


def test_numbers_of_tokens_may_be_as_large_as_they_can_and_still_be_added(session: Session) -> None:
    assert is_served(session, {"min_tokens": 2**30, "max_tokens": 2**30})
    assert is_served(session, {"min_tokens": 2**30, "max_tokens": None})


def test_every_parameter_refuses_some_values_and_serves_others(session: Session) -> None:
    values = [*INTEGERS, *FLOATS, True, "a", "left", [5, 6], ["a"], {5: 1.0}, object(), "model", 'start: "a"']
    values += [None, (), Steering(0, np.ones(HIDDEN)), Patch(0, np.ones(HIDDEN), 0)]
    for name in NAMES:
        results = (is_served(session, beside(name) | {name: value}) for value in values)
        first = next(results)
        assert any(result != first for result in results), name
