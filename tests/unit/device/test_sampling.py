"""A row's token follows the exact distribution of its own parameters, whatever else is in the batch."""

from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.device.outputs import NONE_LEFT, NOT_FINITE
from rekindle.core.device.sampling.adjustments import Adjustments
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import keys_of, sample
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle_kernels.api import Implementation
from rekindle_kernels.xla.noise import gumbel
from tests.unit.sampling_batches import (
    BOUNDS,
    CASES,
    HOT,
    OPTIONS,
    OUTPUT,
    PROMPT,
    batch_of,
    bounded_logits,
    request_of,
)
from tests.unit.sampling_reference import adjusted_logits, distribution

pytestmark = pytest.mark.filterwarnings("ignore::rekindle.ParametersIgnored")  # some are mixed with temperature 0

Array = np.ndarray[Any, np.dtype[Any]]
DRAWS = 20_000
MANY, VOCABULARY, FEW = 200, 400, 4
"""Numbers of rows and of tokens for all tests, because each shape is compiled once more."""
SEED = list(SamplingRows.__dataclass_fields__).index("seed_low")


class Sampler(Protocol):
    """Draw a token for each row of logits (rows, vocabulary), each in the slot of its number."""

    def __call__(
        self, logits: jax.Array, packed: jax.Array, positions: jax.Array, adjustments: Adjustments
    ) -> jax.Array: ...


@cache
def sampler_of(implementation: Implementation) -> Sampler:
    """Make a sampler with an implementation; it is compiled for each shape once."""

    @jax.jit
    def draw(logits: jax.Array, packed: jax.Array, positions: jax.Array, adjustments: Adjustments) -> jax.Array:
        rows, owners = SamplingRows.unpack(packed), jnp.arange(len(logits), dtype=jnp.int32)
        return sample(logits.T, rows, positions, adjustments, owners, 0, None, implementation)[0]

    return draw


@pytest.fixture(scope="module")
def sampler(implementation: Implementation) -> Sampler:
    return sampler_of(implementation)


def chi_square_cases() -> list[Any]:
    """Return (options, vocabulary, implementation): in every run a plain draw and mixes, in the tier each parameter.

    `test_a_draw_is_the_best_token_of_those_that_are_kept` has all of them in every run.
    """
    cases = []
    for place, options in enumerate(CASES):
        filters = options.keys() & {"top_k", "top_p", "min_p"}
        for vocabulary, implementation in ((11, "xla"), (300, "cpu"), (300, "xla"), (11, "cpu")):
            small = (vocabulary, implementation) == (11, "xla")
            always = small and (not place or len(options) > 4)
            again = small or (filters and (vocabulary, implementation) == (300, "cpu"))
            name = f"{implementation}-{vocabulary}-{place}-{','.join(sorted(options))}"
            marks = () if always else pytest.mark.wide if again else pytest.mark.deep
            cases.append(pytest.param(options, vocabulary, implementation, id=name, marks=marks))
    return cases


@pytest.mark.parametrize(("options", "vocabulary", "implementation"), chi_square_cases(), indirect=["implementation"])
def test_draws_follow_the_exact_distribution(sampler: Sampler, options: dict[str, Any], vocabulary: int) -> None:
    """Apply Pearson's chi-square at 1e-6; the statistic is approximated as normal (Wilson and Hilferty, 1931)."""
    logits = np.random.default_rng(1).standard_normal(vocabulary).astype(np.float32) * 2 - 5
    p = distribution(logits, request_of(options), OUTPUT)
    counts, rows = np.zeros(vocabulary), MANY
    request = request_of(options | {"seed": 0})
    packed, one = batch_of([request], [OUTPUT], vocabulary)
    slots = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (rows, *x.shape[1:])), one)
    parameters = np.tile(np.asarray(packed), (rows, 1))
    position = len(PROMPT) + len(OUTPUT)
    for turn in range(DRAWS // rows):
        parameters[:, SEED] = np.arange(rows) + turn * rows
        tokens = sampler(
            jnp.broadcast_to(jnp.asarray(logits), (rows, vocabulary)),
            jnp.asarray(parameters),
            jnp.full(rows, position, jnp.int32),
            slots,
        )
        counts += np.bincount(np.asarray(tokens), minlength=vocabulary)
    assert counts[p == 0].sum() == 0, "a token was drawn that the parameters exclude"
    likely = p * DRAWS >= 5
    statistic = ((counts - p * DRAWS)[likely] ** 2 / (p * DRAWS)[likely]).sum()
    freedom = max(1, int(likely.sum()) - 1)
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    assert z < 4.9


def test_at_a_bound_the_tokens_are_drawn_that_it_keeps(sampler: Sampler) -> None:
    """Draw 64 times for each bound: the least likely token that one keeps is an eighth of its row at least."""
    requests = [request_of(HOT | options | {"seed": seed}) for _, options, _ in BOUNDS for seed in range(64)]
    logits = np.stack([bounded_logits(logits) for logits, _, _ in BOUNDS]).repeat(64, axis=0)
    packed, slots = batch_of(requests, [()] * len(requests), logits.shape[1])
    positions = jnp.full(len(requests), len(PROMPT), jnp.int32)
    tokens = np.asarray(sampler(jnp.asarray(logits), packed, positions, slots)).reshape(-1, 64)
    assert [set(row) for row in tokens.tolist()] == [set(range(count)) for _, _, count in BOUNDS]


@pytest.mark.parametrize(("logits", "options", "count"), BOUNDS)
def test_what_draws_are_compared_with_keeps_the_same_at_a_bound(
    logits: list[float], options: dict[str, Any], count: int
) -> None:
    if options.get("min_p") == 0.5:
        pytest.skip("float64 sees that half is not what the logit says to the last digit")
    probabilities = distribution(bounded_logits(logits), request_of(HOT | options))
    assert np.flatnonzero(probabilities > 1e-30).tolist() == list(range(count))


def test_positions_of_one_seed_draw_independently(sampler: Sampler) -> None:
    """Apply chi-square to pairs of neighbours along the positions of one request."""
    logits = jnp.zeros((DRAWS, 8), jnp.float32)
    packed, slots = batch_of([request_of(HOT | {"seed": 7})], [()], 8)
    rows = jnp.broadcast_to(packed, (DRAWS, packed.shape[1]))
    many = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (DRAWS, *x.shape[1:])), slots)
    tokens = np.asarray(sampler(logits, rows, jnp.arange(DRAWS, dtype=jnp.int32), many))
    pairs = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64)
    expected = (DRAWS - 1) / 64
    statistic = ((pairs - expected) ** 2 / expected).sum()
    assert 63 - 5 * np.sqrt(126) < statistic < 63 + 5 * np.sqrt(126)


@settings(max_examples=12)
@given(
    st.lists(st.tuples(OPTIONS, st.lists(st.integers(0, 39), max_size=5)), min_size=4, max_size=4), st.integers(0, 99)
)
def test_any_mix_of_parameters_stays_within_each_rows_distribution(
    sampler: Sampler, rows: list[tuple[dict[str, Any], list[int]]], at: int
) -> None:
    """Check greedy rows for the likeliest token, others for a possible one, and each for the same in a batch of one."""
    logits = np.random.default_rng(at).standard_normal((FEW, VOCABULARY)).astype(np.float32) * 3
    requests, outputs = [request_of(options) for options, _ in rows], [output for _, output in rows]
    positions = [len(PROMPT) + len(output) for output in outputs]
    packed, slots = batch_of(requests, outputs, VOCABULARY)
    together = np.asarray(sampler(jnp.asarray(logits), packed, jnp.asarray(positions, jnp.int32), slots))
    for row, (request, output) in enumerate(zip(requests, outputs, strict=True)):
        params = request.params
        # The bounds are a little wider, because float32 and float64 may differ about a token right at the edge.
        wider = replace(params, top_p=min(1.0, params.top_p + 1e-5), min_p=max(0.0, params.min_p - 1e-5))
        assert distribution(logits[row], replace(request, params=wider), output)[together[row]] > 0
        packed_one, slot = batch_of([request], [output], VOCABULARY)
        alone = sampler(
            jnp.asarray(logits[row : row + 1]), packed_one, jnp.asarray(positions[row : row + 1], jnp.int32), slot
        )
        assert int(alone[0]) == together[row]


def test_min_p_is_relative_to_the_largest_probability_for_negative_logits(sampler: Sampler) -> None:
    """Check this because a threshold on logits, as in another engine, would sample these four uniformly."""
    logits = np.asarray([-1.0, -2.0, -3.0, -9.0, *[-10.0] * 4], np.float32)
    p = distribution(logits, request_of_none(min_p=0.3))
    np.testing.assert_allclose(p, [0.731, 0.269, *[0] * 6], atol=0.001)
    np.testing.assert_allclose(frequencies(sampler, logits, min_p=0.3), p, atol=0.02)


def frequencies(sampler: Sampler, logits: Array, **options: Any) -> Array:
    """Draw from eight logits at many positions; return the frequency of each token."""
    packed, slots = batch_of([request_of_none(**options)], [()], 8)
    many = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (DRAWS, *x.shape[1:])), (packed, slots))
    tokens = sampler(jnp.broadcast_to(logits, (DRAWS, 8)), many[0], jnp.arange(DRAWS, dtype=jnp.int32), many[1])
    return np.bincount(np.asarray(tokens), minlength=8) / DRAWS


def request_of_none(**options: Any) -> Request:
    params = SamplingParams.from_options({"temperature": 1.0, "seed": 0, **options})
    return Request(0, (0,), params, frozenset(), 100)


def test_a_draw_depends_on_its_seed_and_position_alone(sampler: Sampler) -> None:
    """Vary the row's index, its neighbours, and the size of the batch."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, VOCABULARY)).astype(np.float32)
    row = request_of({"temperature": 1.3, "top_p": 0.9, "seed": 77, "repetition_penalty": 1.2})
    packed, slot = batch_of([row], [OUTPUT], VOCABULARY)
    alone = [int(sampler(jnp.asarray(logits), packed, jnp.asarray([at], jnp.int32), slot)[0]) for at in range(20)]
    strangers = [request_of({"temperature": 0.7, "top_k": 3, "seed": 5}), request_of({}), request_of({"min_tokens": 2})]
    for place in range(4):
        others = rng.standard_normal((3, VOCABULARY)).astype(np.float32)
        batch = np.concatenate([others[:place], logits, others[place:]])
        packed, slots = batch_of([*strangers[:place], row, *strangers[place:]], [OUTPUT] * FEW, VOCABULARY)
        positions = np.arange(100, 104, dtype=np.int32)
        for at in range(20):
            positions[place] = at
            assert int(sampler(jnp.asarray(batch), packed, jnp.asarray(positions), slots)[place]) == alone[at]
    assert len(set(alone)) > 5, "positions draw differently"


@pytest.mark.parametrize("options", [{}, *CASES], ids=str)
def test_a_draw_is_the_best_token_of_those_that_are_kept(sampler: Sampler, options: dict[str, Any]) -> None:
    """Check the draw against the best by logit and noise among numpy's tokens: no filter has noise of its own."""
    vocabulary, rows = 300, MANY
    logits = np.random.default_rng(5).standard_normal((rows, vocabulary)).astype(np.float32) * 2
    request = request_of(options | {"seed": 2**40 + 3})
    packed, one = batch_of([request], [OUTPUT], vocabulary)
    slots = jax.tree.map(lambda x: jnp.broadcast_to(x[0], (rows, *x.shape[1:])), one)
    positions = np.full(rows, len(PROMPT) + len(OUTPUT), np.int32)
    tokens = sampler(jnp.asarray(logits), jnp.tile(packed, (rows, 1)), jnp.asarray(positions), slots)
    low, high, position = (jnp.asarray([word], jnp.int32) for word in (3, 2**8, positions[0]))
    noise = np.asarray(gumbel(*keys_of(low, high, position), vocabulary))[:, 0]
    allowed = np.stack([distribution(row, request, OUTPUT) for row in logits]) > 0
    temperature = request.params.temperature or 1.0
    scores = np.stack([adjusted_logits(row, request, OUTPUT) for row in logits]) / temperature + noise
    np.testing.assert_array_equal(tokens, np.where(allowed, scores, -np.inf).argmax(-1))


@pytest.mark.parametrize("odd", [np.nan, pytest.param(np.inf, marks=pytest.mark.wide)], ids=str)
def test_rows_that_are_not_finite_have_a_sign_and_their_neighbours_the_tokens_of_before(
    sampler: Sampler, odd: float
) -> None:
    requests = [request_of(case | {"seed": 5}) for case in CASES for _ in range(MANY // len(CASES) + 1)][:MANY]
    logits = np.random.default_rng(6).standard_normal((MANY, VOCABULARY)).astype(np.float32)
    packed, slots = batch_of(requests, [OUTPUT] * MANY, VOCABULARY)
    positions, sick = jnp.full(MANY, len(PROMPT) + len(OUTPUT), jnp.int32), np.arange(MANY) % 3 == 0
    expected = np.asarray(sampler(jnp.asarray(logits), packed, positions, slots))
    logits[sick, np.arange(MANY)[sick]] = odd
    tokens = sampler(jnp.asarray(logits), packed, positions, slots)
    np.testing.assert_array_equal(tokens, np.where(sick, NOT_FINITE, expected))


def test_a_row_whose_tokens_are_all_banned_has_a_sign(sampler: Sampler) -> None:
    banned: dict[str, Any] = {"allowed_token_ids": [2], "min_tokens": 9}
    ways = [HOT | banned, HOT | banned | {"top_p": 0.5, "top_k": 2}, {"temperature": 0} | banned, HOT]
    packed, slots = batch_of([request_of(way | {"seed": 1}) for way in ways], [()] * FEW, VOCABULARY)
    logits = jnp.asarray(np.random.default_rng(7).standard_normal((FEW, VOCABULARY)), jnp.float32)
    tokens = sampler(logits, packed, jnp.full(FEW, len(PROMPT), jnp.int32), slots)
    assert tokens[:3].tolist() == [NONE_LEFT] * 3
    assert tokens[3] >= 0


@pytest.mark.wide
@pytest.mark.usefixtures("optimized")
def test_last_digits_of_the_logits_hardly_ever_change_a_draw(sampler: Sampler) -> None:
    """Shake the logits of a large vocabulary as another bucket of a real model does; a CDF inverted flips 1 in 100."""
    rng, rows, vocabulary = np.random.default_rng(2), 64, 49_152
    logits = rng.standard_normal(vocabulary).astype(np.float32) * 3
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.01}]
    requests = [request_of(HOT | kind) for kind in kinds * (rows // len(kinds))]
    packed, slots = batch_of(requests, [()] * rows, vocabulary)
    flips = 0
    for _ in range(16):
        parameters = np.asarray(packed).copy()
        parameters[:, SEED] = rng.integers(-(2**31), 2**31, rows)
        positions = jnp.asarray(rng.integers(0, 2000, rows), jnp.int32)
        shaken = logits + rng.standard_normal((rows, vocabulary), np.float32) * 3e-5
        one, other = (
            sampler(jnp.asarray(x), jnp.asarray(parameters), positions, slots)
            for x in (np.broadcast_to(logits, (rows, vocabulary)), shaken)
        )
        flips += int((one != other).sum())
    assert flips <= 1, "of 1,024 draws"


@pytest.mark.parametrize(
    ("setting", "value"), [("jax_enable_x64", True), ("jax_default_prng_impl", "rbg")], ids=["x64", "rbg"]
)
def test_draws_do_not_depend_on_settings_of_jax(sampler: Sampler, setting: str, value: Any) -> None:
    request = request_of(CASES[-1] | {"seed": 2**63 + 1, "top_k": 5})
    packed, slots = batch_of([request] * FEW, [OUTPUT] * FEW, VOCABULARY)
    logits = jnp.asarray(np.random.default_rng(8).standard_normal((FEW, VOCABULARY)), jnp.float32)
    positions, before = jnp.arange(FEW, dtype=jnp.int32), getattr(jax.config, setting)
    expected = sampler(logits, packed, positions, slots)
    jax.config.update(setting, value)
    try:
        tokens = sampler(logits, packed, positions, slots)
    finally:
        jax.config.update(setting, before)
    np.testing.assert_array_equal(tokens, expected)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-5}], ids=str
)
def test_extreme_values_are_greedy(sampler: Sampler, options: dict[str, Any]) -> None:
    logits = np.random.default_rng(3).standard_normal((1, VOCABULARY)).astype(np.float32)
    packed, slot = batch_of([request_of({"temperature": 5.0} | options)], [()], VOCABULARY)
    for at in range(20):
        token = sampler(jnp.asarray(logits), packed, jnp.asarray([at], jnp.int32), slot)
        assert int(token[0]) == np.argmax(logits)


def test_the_highest_temperature_is_nearly_uniform(sampler: Sampler) -> None:
    logits = np.asarray([-4.0, 0.0, 3.0, 0.5, 1.0, -1.0, 2.0, -3.0], np.float32)
    np.testing.assert_allclose(frequencies(sampler, logits, temperature=100.0), [0.125] * 8, atol=0.01)
