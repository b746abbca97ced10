"""A logits processor of the user's own sees one request, after the adjustments and before the temperature."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.request.params import SamplingOptions
from rekindle.testing import expected_tokens, fake_session
from tests.unit.sampling_batches import OUTPUT, PROMPT, batch_of, request_of

VOCABULARY = 40
Function = Callable[[jax.Array, rekindle.LogitsRow], jax.Array]


def draw_tokens(function: Function, logits: np.ndarray[Any, Any], options: list[SamplingOptions]) -> list[int]:
    """Draw a token for each row of logits, all at the same place of the same prompt and output."""
    processor = LogitsProcessor.trace(function, VOCABULARY)
    packed, slots = batch_of([request_of(dict(each)) for each in options], [OUTPUT] * len(options), VOCABULARY)
    positions = jnp.full(len(options), len(PROMPT) + len(OUTPUT), jnp.int32)
    owners = jnp.arange(len(options), dtype=jnp.int32)
    draw = jax.jit(partial(sample, max_logprobs=0, processor=processor))
    tokens: list[int] = draw(jnp.asarray(logits.T), SamplingRows.unpack(packed), positions, slots, owners)[0].tolist()
    return tokens


def prefer(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
    """Make the token that the first argument names the likeliest."""
    return logits.at[row.args[0].astype(jnp.int32)].set(1e6)


@pytest.mark.wide
def test_it_runs_for_the_rows_that_ask_for_it_with_their_own_numbers() -> None:
    logits = np.random.default_rng(0).normal(size=(6, VOCABULARY)).astype(np.float32)
    options: list[SamplingOptions] = [
        {"processor_args": (7,)},
        {},
        {"processor_args": (9,), "temperature": 1.0, "seed": 3},
        {"repetition_penalty": 1.5},
        {"processor_args": ()},
        {"processor_args": (11,), "allowed_token_ids": [1, 11]},
    ]
    together = draw_tokens(prefer, logits, options)
    assert [together[at] for at in (0, 2, 4, 5)] == [7, 9, 0, 11]
    assert together[1] == logits[1].argmax()
    assert together[3] == draw_tokens(lambda logits, row: logits * 0, logits, options)[3], "it is not asked for"


@pytest.mark.wide
def test_it_comes_after_the_adjustments_and_before_the_temperature() -> None:
    logits = np.zeros((2, VOCABULARY), np.float32)
    bias: SamplingOptions = {"logit_bias": {5: 8.0}, "processor_args": ()}
    hot: SamplingOptions = {**bias, "temperature": 100.0, "seed": 1}
    tokens = draw_tokens(lambda logits, row: jnp.where(logits >= 8, logits, -jnp.inf), logits, [bias, hot])
    assert tokens == [5, 5], "before the bias, or divided by the temperature, no logit is 8"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "function"),
    [
        pytest.param(
            {"repetition_penalty": 1.7},
            lambda logits, row: jnp.where(
                row.in_prompt | (row.counts > 0), jnp.where(logits > 0, logits / 1.7, logits * 1.7), logits
            ),
            marks=pytest.mark.wide,
        ),
        pytest.param(
            {"frequency_penalty": 1.3},
            lambda logits, row: logits - 1.3 * row.counts.astype(jnp.float32),
            marks=pytest.mark.wide,
        ),
        ({"bad_words": [[1, 9, 4], [5, 3]]}, lambda logits, row: jnp.where(
            (row.recent[-1] == 9) & (row.recent[-2] == 1), logits.at[4].set(-jnp.inf), logits
        )),
        pytest.param(
            {"min_tokens": 5},
            lambda logits, row: logits.at[2].set(jnp.where(row.position < 8, -jnp.inf, logits[2])),
            marks=pytest.mark.wide,
        ),
    ],
    ids=["repetition", "frequency", "recent", "position"],
)  # fmt: skip
def test_it_knows_what_the_parameters_of_the_same_effect_know(options: SamplingOptions, function: Function) -> None:
    logits = np.random.default_rng(1).normal(size=(64, VOCABULARY)).astype(np.float32)
    logits[:, [2, 4]] += 2.5  # what is banned here is likely
    own = draw_tokens(lambda logits, row: logits, logits, [options] * 64)
    assert draw_tokens(function, logits, [{"processor_args": ()}] * 64) == own != logits.argmax(1).tolist()


def test_its_name_says_all_that_it_computes() -> None:
    def scaled(by: float, table: np.ndarray[Any, Any]) -> Function:
        inner = jax.jit(lambda logits: logits * by + table)
        return lambda logits, row: inner(logits)

    zeros, other = np.zeros(VOCABULARY, np.float32), np.eye(1, VOCABULARY, 33, dtype=np.float32)[0]
    names = [LogitsProcessor.trace(scaled(by, table), VOCABULARY).name for by in (2, 3) for table in (zeros, other)]
    assert len({*names}) == 4
    assert LogitsProcessor.trace(scaled(2, zeros.copy()), VOCABULARY).name == names[0]


def prints(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
    jax.debug.print("{}", row.position)
    return logits


def calls_back(logits: jax.Array, row: rekindle.LogitsRow) -> jax.Array:
    return jnp.asarray(jax.pure_callback(lambda x: x, logits, logits))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda logits: logits, "it raised TypeError"),
        (lambda logits, row: logits if logits[0] > 0 else -logits, "it raised TracerBoolConversionError"),
        (lambda logits, row: logits[:3], r"must return logits, float32\[40\], got float32\[3\]"),
        (lambda logits, row: logits.argmax(), r"got int32\[\]"),
        (lambda logits, row: (logits, logits), r"got float32\[40\], float32\[40\]"),
        (lambda logits, row: None, "got nothing"),
        (prints, "must not call back into Python"),
        (calls_back, "must not call back into Python"),
    ],
)
def test_what_cannot_be_compiled_and_stored_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LogitsProcessor.trace(function, VOCABULARY)


def test_what_is_no_function_is_refused_when_the_session_is_opened() -> None:
    with pytest.raises(
        ConfigError, match=r"logits_processor must be a function of logits and a rekindle.LogitsRow, got 3"
    ):
        rekindle.Settings(logits_processor=3)  # type: ignore[arg-type]


def test_numbers_for_it_need_one() -> None:
    with fake_session() as session:
        assert session.sampling_defaults.processor_args is None
        with pytest.raises(InvalidRequest, match="processor_args need a logits processor"):
            session.generate_sync(token_ids=PROMPT, processor_args=[1.0])
    with fake_session(logits_processor=lambda logits, row: logits) as session:
        assert session.sampling_defaults.processor_args == ()
        for args in ((), (1, 2.5), None):
            answer = session.generate_sync(token_ids=PROMPT, processor_args=args, max_tokens=3)
            assert answer.token_ids == expected_tokens(PROMPT, 3)
        with pytest.raises(InvalidRequest, match="a sequence of at most 8 numbers, got"):
            session.generate_sync(token_ids=PROMPT, processor_args=range(9))
