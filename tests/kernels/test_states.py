"""States of recurrent layers: every implementation that runs here equals the definition, token by token in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels import reference, states
from rekindle_kernels.api import Implementation, operations_of

pytestmark = pytest.mark.kernel

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = 16
SLOTS = 6
NULL = SLOTS - 1


@dataclass(frozen=True)
class Blocks:
    """Blocks of several requests, and their places."""

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def real(self) -> Array:
        """Return a mask of the real tokens, (blocks, 16)."""
        return np.arange(TOKENS)[None] < np.asarray(self.counts)[:, None]

    def arrays(self) -> tuple[Array, Array, Array]:
        return tuple(np.asarray(each, np.int32) for each in (self.slots, self.starts, self.counts))  # type: ignore[return-value]


RAGGED = Blocks(
    slots=(3, 3, 3, 0, 4, 1, 1, NULL, NULL),
    starts=(32, 48, 64, 0, 16, 0, 16, 0, 0),
    counts=(16, 16, 5, 7, 1, 16, 16, 0, 0),
)
"""A request goes on, two begin in slots with the states of others, one has a single token, and two blocks are empty."""


@dataclass(frozen=True)
class Case:
    """The sizes of a recurrence."""

    key_heads: int = 2
    group: int = 2
    keys: int = 24
    values: int = 40
    delta: bool = True
    by_channel: bool = False
    least: float = -0.3
    alike: bool = False

    @property
    def heads(self) -> int:
        return self.key_heads * self.group

    def tokens(self, *lead: int) -> list[Array | None]:
        """Draw q, k, v, decay and beta, with unit keys as models have them."""
        rng = np.random.default_rng(lead)
        q, k = (rng.standard_normal((*lead, self.key_heads, self.keys)) for _ in range(2))
        if self.alike:
            k = np.broadcast_to(k.reshape(-1, *k.shape[-2:])[0], k.shape) + 0.01 * k
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        v = rng.standard_normal((*lead, self.heads, self.values))
        decays = (*lead, self.heads, self.keys) if self.by_channel else (*lead, self.heads)
        decay = np.where(rng.random(decays) < 0.2, 0.0, self.least * rng.random(decays))
        beta = 1 - 0.3 * rng.random((*lead, self.heads)) if self.delta else None
        return [None if each is None else each.astype(np.float32) for each in (q, k, v, decay, beta)]

    def states(self) -> Array:
        return dirty(self.heads, self.keys, self.values)


CASES = [
    Case(),
    *(pytest.param(each, marks=pytest.mark.wide) for each in (
        Case(delta=False), Case(by_channel=True), Case(key_heads=1, group=3, keys=64, values=128), Case(least=-80.0),
    )),
    Case(by_channel=True, delta=False, group=1),
    Case(keys=7, values=5),
    Case(by_channel=True, least=-80.0),
    Case(alike=True, least=-0.001),
]  # fmt: skip


def dirty(*shape: int) -> Array:
    """Draw states of all slots, with NaN in the null slot."""
    numbers = np.random.default_rng(shape).standard_normal((SLOTS, *shape)).astype(np.float32)
    numbers[NULL] = np.nan
    return numbers


def in_float64(function: Callable[..., Any], *arguments: Array | None) -> tuple[Array, Array]:
    """Compute a function of the reference with all floats in float64."""
    with jax.enable_x64(True):
        wide = [x.astype(np.float64) if x is not None and x.dtype == np.float32 else x for x in arguments]
        result, after = jax.jit(function)(*(None if each is None else jnp.asarray(each) for each in wide))
        return np.asarray(result), np.asarray(after)


@cache
def program(function: Callable[..., Any], implementation: Implementation) -> Callable[..., Any]:
    """Return a compiled function; the tests of bits call one many times."""
    return jax.jit(partial(function, implementation=implementation))


def computed(
    function: Callable[..., Any], *arguments: Array | None, implementation: Implementation
) -> tuple[Array, Array]:
    """Call a function with float32 arrays."""
    result, after = program(function, implementation)(
        *(None if each is None else jnp.asarray(each) for each in arguments)
    )
    assert result.dtype == after.dtype == jnp.float32
    return np.asarray(result), np.asarray(after)


def poisoned(arrays: list[Array | None], real: Array) -> list[Array | None]:
    """Put NaN into all tokens that are padding."""
    return [
        None if each is None else np.where(real.reshape(*real.shape, *(1,) * (each.ndim - real.ndim)), each, np.nan)
        .astype(np.float32)
        for each in arrays
    ]  # fmt: skip


def check(actual: tuple[Array, Array], expected: tuple[Array, Array], real: Array) -> None:
    """Compare the results of real tokens, and the states of real slots."""
    assert np.isfinite(actual[0]).all(), "padding must be finite"
    largest = np.abs(expected[0][real]).max()
    np.testing.assert_allclose(actual[0][real], expected[0][real], rtol=1e-5, atol=1e-5 * largest)
    largest = np.abs(expected[1][:NULL]).max()
    np.testing.assert_allclose(actual[1][:NULL], expected[1][:NULL], rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recurrence_of_blocks_is_the_definition(implementation: Implementation, case: Case) -> None:
    tokens, places = poisoned(case.tokens(len(RAGGED), TOKENS), RAGGED.real), RAGGED.arrays()
    expected = in_float64(reference.recur_blocks, *tokens, case.states(), *places)
    actual = computed(states.recur_blocks, *tokens, case.states(), *places, implementation=implementation)
    check(actual, expected, RAGGED.real)


ROWS = np.asarray([2, NULL, 0, 4, NULL], np.int32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recurrence_of_rows_is_the_definition(implementation: Implementation, case: Case) -> None:
    real = ROWS != NULL
    tokens = poisoned(case.tokens(len(ROWS)), real)
    expected = in_float64(reference.recur_rows, *tokens, case.states(), ROWS)
    actual = computed(states.recur_rows, *tokens, case.states(), ROWS, implementation=implementation)
    check(actual, expected, real)


@pytest.mark.parametrize(("channels", "taps", "biased"), [(36, 4, True), (300, 3, False), (5, 2, True), (16, 16, True)])
def test_a_convolution_is_the_definition(
    implementation: Implementation, channels: int, taps: int, biased: bool
) -> None:
    rng = np.random.default_rng(channels)
    weight = rng.standard_normal((channels, taps)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) if biased else None
    before = dirty(taps - 1, channels)
    for function, definition, places, real in (
        (states.convolve_blocks, reference.convolve_blocks, RAGGED.arrays(), RAGGED.real),
        (states.convolve_rows, reference.convolve_rows, (ROWS,), ROWS != NULL),
    ):
        (x,) = poisoned([rng.standard_normal((*real.shape, channels)).astype(np.float32)], real)
        expected = in_float64(definition, x, weight, bias, before, *places)
        check(computed(function, x, weight, bias, before, *places, implementation=implementation), expected, real)


def test_the_definition_is_the_sums_of_its_formulas() -> None:
    case, rng = Case(key_heads=1, group=1, keys=3, values=2), np.random.default_rng(0)
    q, k, v, decay, beta = (np.asarray(each, np.float64) for each in case.tokens(1, TOKENS))
    before = rng.standard_normal((2, 1, 3, 2))
    places = (np.zeros(1, np.int32), np.full(1, 16, np.int32), np.full(1, TOKENS, np.int32))
    o, after = in_float64(reference.recur_blocks, q, k, v, decay, beta, before, *places)
    state = before[0, 0]
    for t in range(TOKENS):
        state = np.exp(decay[0, t, 0]) * state
        state = state + np.outer(k[0, t, 0], beta[0, t, 0] * (v[0, t, 0] - k[0, t, 0] @ state))
        np.testing.assert_allclose(o[0, t, 0], q[0, t, 0] @ state, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(after[0, 0], state, rtol=1e-12, atol=1e-14)
    x, weight, last = rng.standard_normal((1, TOKENS, 2)), rng.standard_normal((2, 4)), rng.standard_normal((2, 3, 2))
    y, inputs = in_float64(reference.convolve_blocks, x, weight, None, last, *places)
    every = np.concatenate([last[0], x[0]])
    for t in range(TOKENS):
        np.testing.assert_allclose(y[0, t], np.einsum("tc,ct->c", every[t : t + 4], weight), rtol=1e-12)
    np.testing.assert_array_equal(inputs[0], every[-3:])


@pytest.mark.parametrize("case", [Case(), Case(by_channel=True), Case(delta=False), Case(keys=64, values=128)], ids=str)
def test_bits_of_native_states_do_not_depend_on_the_division_into_calls(case: Case) -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    tokens = case.tokens(3, TOKENS)
    weight = np.random.default_rng(1).standard_normal((case.values, 4)).astype(np.float32)
    x = np.random.default_rng(2).standard_normal((3, TOKENS, case.values)).astype(np.float32)
    matrices, inputs = case.states(), dirty(3, case.values)

    def blocks(begin: int, end: int, beside: int = 0) -> Array:
        """Compute whole blocks of slot 2, after blocks of another slot; return all results, (tokens, numbers)."""
        nonlocal matrices, inputs
        slots = np.asarray([1] * beside + [2] * (end - begin), np.int32)
        starts = np.asarray(
            [16 + TOKENS * i for i in range(beside)] + [TOKENS * i for i in range(begin, end)], np.int32
        )
        counts = np.full(len(slots), TOKENS, np.int32)
        rows = [0] * beside + list(range(begin, end))
        selection = [None if each is None else each[rows] for each in tokens]
        o, matrices = computed(states.recur_blocks, *selection, matrices, slots, starts, counts, implementation="cpu")
        y, inputs = computed(
            states.convolve_blocks, x[rows], weight, None, inputs, slots, starts, counts, implementation="cpu"
        )
        return np.concatenate([each[beside:].reshape((end - begin) * TOKENS, -1) for each in (o, y)], axis=1)

    def row(block: int, token: int) -> Array:
        """Compute one token of slot 2 beside one of another."""
        nonlocal matrices, inputs
        slots, at = np.asarray([0, 2], np.int32), np.asarray([token, token])
        selection = [None if each is None else each[[0, block], at] for each in tokens]
        o, matrices = computed(states.recur_rows, *selection, matrices, slots, implementation="cpu")
        y, inputs = computed(states.convolve_rows, x[[0, block], at], weight, None, inputs, slots, implementation="cpu")
        return np.concatenate([o[1].reshape(1, -1), y[1:]], axis=1)

    together = blocks(0, 3), matrices[2], inputs[2]
    apart = np.concatenate([blocks(0, 1, beside=2), blocks(1, 3, beside=1)]), matrices[2], inputs[2]
    one_by_one = (
        np.concatenate([blocks(0, 1), *(row(block, token) for block in (1, 2) for token in range(TOKENS))]),
        matrices[2],
        inputs[2],
    )
    for other in (apart, one_by_one):
        for mine, theirs in zip(together, other, strict=True):
            np.testing.assert_array_equal(mine.view(np.int32), theirs.view(np.int32))


def test_states_are_updated_in_place_where_they_are_donated(implementation: Implementation, optimized: None) -> None:
    case, slots = Case(keys=64, values=64), 64

    def call(before: jax.Array, tokens: list[jax.Array], ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v, decay, beta = tokens
        return states.recur_rows(q, k, v, decay, beta, before, ids, implementation=implementation)

    before = jnp.zeros((slots, case.heads, case.keys, case.values))
    arguments = (before, [jnp.asarray(each) for each in case.tokens(len(ROWS))], jnp.asarray(ROWS))
    memory: Any = jax.jit(call, donate_argnums=0).lower(*arguments).compile().memory_analysis()
    assert memory.alias_size_in_bytes == before.nbytes
    assert memory.temp_size_in_bytes < before.nbytes / 2


def test_slots_out_of_range_change_nothing_and_give_zeros() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    case, slots = Case(), np.asarray([-1, SLOTS, 2**31 - 1, -(2**31)], np.int32)
    o, after = computed(states.recur_rows, *case.tokens(4), case.states(), slots, implementation="cpu")
    assert not o.any()
    np.testing.assert_array_equal(after, case.states())


def test_arguments_that_do_not_fit_are_refused(implementation: Implementation) -> None:
    ids, x, weight = jnp.zeros(2, jnp.int32), jnp.zeros((2, 8)), jnp.zeros((8, 4))
    memory = jnp.zeros((3, 3, 8))
    for wrong, message in (
        ((x, jnp.zeros((9, 4)), None, memory, ids), r"over \(2, 8\) has weights \(channels, taps\), got \(9, 4\)"),
        ((x, jnp.zeros((8, 1)), None, jnp.zeros((3, 0, 8)), ids), "has 2 to 16 taps, got 1"),
        ((x, weight, jnp.zeros(4), memory, ids), r"bias of 8 channels must be \(8,\), got \(4,\)"),
        ((x, weight, None, memory[:, :2], ids), r"states must be \(slots, 3, 8\), got \(3, 2, 8\)"),
        ((x, weight, None, memory, ids[:1]), r"slots, starts and counts must be \(2,\), got \[\(1,\)\]"),
    ):
        with pytest.raises(ValueError, match=message):
            states.convolve_rows(*wrong, implementation=implementation)
    q, v, decay, matrices = jnp.zeros((2, 2, 8)), jnp.zeros((2, 4, 6)), jnp.zeros((2, 4)), jnp.zeros((3, 4, 8, 6))
    for refused, message in (
        ((q, q[:1], v, decay, None, matrices, ids), r"keys \(1, 2, 8\) and values \(2, 4, 6\) do not fit together"),
        ((q, q, v[:, :3], decay, None, matrices, ids), "3 heads cannot share 2 key heads evenly"),
        ((q, q, v, decay[:, :3], None, matrices, ids), r"decay must be \(2, 4\) or \(2, 4, 8\), got \(2, 3\)"),
        ((q, q, v, decay, decay[:, :1], matrices, ids), r"beta must be \(2, 4\), got \(2, 1\)"),
        ((q, q, v, decay, None, matrices[:, :3], ids), r"states must be \(slots, 4, 8, 6\), got \(3, 3, 8, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            states.recur_rows(*refused, implementation=implementation)
