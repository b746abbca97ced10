"""Linear layers, norms, rotations and gates follow the definition in all implementations here."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle_kernels import layers
from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.inputs import Gated, Normed

pytestmark = pytest.mark.kernel

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = ("float32", "bfloat16")


def packed_form(parts: list[Array], dtype: str, implementation: Implementation) -> jax.Array:
    """Return matrices as one weight in the implementation's form."""
    outputs, inputs = sum(map(len, parts)), parts[0].shape[1]
    form = layers.packed((outputs, inputs), jnp.dtype(dtype), implementation=implementation)
    into = np.zeros(form.shape, form.dtype)
    layers.pack(parts, into, implementation=implementation)
    return jnp.asarray(into)


def random(*shape: int) -> Array:
    """Return normal float32 numbers, as a function of the shape alone."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 60), inputs=st.sampled_from([1, 7, 64, 577, 1030]),
    outputs=st.lists(st.sampled_from([1, 8, 31, 32, 45, 128]), min_size=1, max_size=3), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_a_linear_layer_over_joined_matrices_is_the_product(
    implementation: Implementation, rows: int, inputs: int, outputs: list[int], dtype: str
) -> None:
    x, parts = random(rows, inputs), [random(size, inputs) for size in outputs]
    weight = packed_form(parts, dtype, implementation)
    y = layers.linear(jnp.asarray(x), weight, sum(outputs), implementation=implementation)
    rounded = np.concatenate(parts).astype(dtype).astype(np.float64)
    expected = x.astype(dtype).astype(np.float64) @ rounded.T
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(y), expected, rtol=5e-6, atol=3e-5 * np.sqrt(inputs))
    columns = layers.linear_columns(jnp.asarray(x), weight, sum(outputs), implementation=implementation)
    np.testing.assert_array_equal(np.asarray(columns).T, np.asarray(y))
    onto = random(rows, sum(outputs))
    added = layers.linear(jnp.asarray(x), weight, sum(outputs), implementation=implementation, onto=jnp.asarray(onto))
    np.testing.assert_array_equal(np.asarray(added), onto + np.asarray(y))


@settings(max_examples=4, deadline=None)
@given(
    counts=st.lists(st.sampled_from([0, 1, 2, 17, 50]), min_size=1, max_size=6), inputs=st.sampled_from([7, 64]),
    outputs=st.sampled_from([24, 64, 100]), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_rows_are_multiplied_with_the_weight_of_their_group(
    implementation: Implementation, counts: list[int], inputs: int, outputs: int, dtype: str
) -> None:
    x, weights = random(sum(counts), inputs), random(len(counts), outputs, inputs)
    packed = jnp.stack([packed_form([weight], dtype, implementation) for weight in weights])
    sizes = jnp.asarray(counts, jnp.int32)
    y = layers.grouped_linear(jnp.asarray(x), sizes, packed, outputs, implementation=implementation)
    of_rows = np.repeat(np.arange(len(counts)), counts)
    rounded = weights.astype(dtype).astype(np.float64)[of_rows]
    expected = np.einsum("ri,roi->ro", x.astype(dtype).astype(np.float64), rounded)
    np.testing.assert_allclose(np.asarray(y), expected, rtol=5e-6, atol=3e-5 * np.sqrt(inputs))


@settings(max_examples=4, deadline=None)
@given(
    counts=st.lists(st.sampled_from([0, 1, 2, 17, 50]), min_size=2, max_size=5), inputs=st.sampled_from([7, 64]),
    rank=st.sampled_from([1, 16, 45]), outputs=st.sampled_from([24, 100]), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_rows_are_multiplied_with_the_two_small_weights_of_their_group_and_the_last_rows_with_none(
    implementation: Implementation, counts: list[int], inputs: int, rank: int, outputs: int, dtype: str
) -> None:
    groups, of_rows = len(counts) - 1, np.repeat(np.arange(len(counts)), counts)
    x, first, second = random(sum(counts), inputs), random(groups, rank, inputs), random(groups, outputs, rank)
    packed = [jnp.stack([packed_form([w], dtype, implementation) for w in weights]) for weights in (first, second)]
    of = jnp.asarray(of_rows, jnp.int32)
    onto = random(len(x), outputs)
    how: dict[str, Any] = {"onto": jnp.asarray(onto), "implementation": implementation}
    y = layers.low_rank(jnp.asarray(x), of, packed[0], packed[1], (rank, outputs), **how)
    zeros = np.zeros((1, outputs, rank), np.float32)
    a, b = (w.astype(dtype).astype(np.float64) for w in (np.append(first, first[:1], 0), np.append(second, zeros, 0)))
    inner = np.einsum("ri,rki->rk", x.astype(dtype).astype(np.float64), a[of_rows]).astype(np.float32)
    expected = onto + np.einsum("rk,rok->ro", inner.astype(dtype).astype(np.float64), b[of_rows])
    loose = 1 if dtype == "float32" else 100  # a sum may be rounded to the other neighbour
    np.testing.assert_allclose(np.asarray(y), expected, rtol=5e-6, atol=loose * 3e-5 * np.sqrt(inputs * rank))
    np.testing.assert_array_equal(np.asarray(y)[of_rows == groups], onto[of_rows == groups])
    if len(x):
        np.testing.assert_array_equal(np.asarray(how["onto"]), onto, "it is not overwritten while it is in use")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [33, 64])
def test_rows_are_looked_up_as_they_were_packed(implementation: Implementation, dtype: str, inputs: int) -> None:
    parts, ids = [random(70, inputs)], np.array([69, 0, 31, 32, 31], np.int32)
    weight = packed_form(parts, dtype, implementation)
    rows = layers.look_up(weight, jnp.asarray(ids), (70, inputs), implementation=implementation)
    np.testing.assert_array_equal(np.asarray(rows), parts[0].astype(dtype).astype(np.float32)[ids])


@pytest.mark.parametrize("shape", [(5, 7), (3, 576), (40, 2, 64), (1, 1)])
def test_a_norm_is_the_definition(implementation: Implementation, shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(shape[-1])
    y = layers.rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-5, implementation=implementation)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (3, 576), (40, 2, 64), (1, 1)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_centred_norm_is_the_definition(
    implementation: Implementation, has_bias: bool, shape: tuple[int, ...]
) -> None:
    x, weight = 3 + random(*shape), random(shape[-1])
    bias = np.linspace(-1, 2, shape[-1], dtype=np.float32) if has_bias else None
    added = None if bias is None else jnp.asarray(bias)
    y = layers.layer_norm(jnp.asarray(x), jnp.asarray(weight), added, 1e-5, implementation=implementation)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(np.asarray(y), expected if bias is None else expected + bias, rtol=1e-5, atol=2e-6)


@settings(max_examples=5, deadline=None)
@given(
    tokens=st.sampled_from([1, 17, 300]), heads=st.integers(1, 5), kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 20, 64]), part=st.sampled_from([0, 0.25, 0.5]),
)  # fmt: skip
def test_queries_and_keys_turn_by_the_angles_of_their_token(
    implementation: Implementation, tokens: int, heads: int, kv_heads: int, head_dim: int, part: float
) -> None:
    qkv, angles = random(tokens, heads + 2 * kv_heads, head_dim), random(tokens, int(part * head_dim))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotate = jax.jit(layers.rotate, static_argnames=("kv_heads", "implementation"))
    q, kv = rotate(jnp.asarray(qkv), cos, sin, kv_heads, implementation=implementation)
    pairs = angles.shape[1]
    turned = qkv[..., :pairs] + 1j * qkv[..., pairs : 2 * pairs]
    turned = turned * np.exp(1j * angles)[:, None]
    expected = np.concatenate([turned.real, turned.imag, qkv[..., 2 * pairs :]], axis=-1)
    np.testing.assert_allclose(np.asarray(q), expected[:, :heads], atol=1e-5)
    np.testing.assert_allclose(np.asarray(kv[:, 0]), expected[:, heads : heads + kv_heads], atol=1e-5)
    np.testing.assert_array_equal(np.asarray(kv[:, 1]), qkv[:, heads + kv_heads :])


@pytest.mark.parametrize("shape", [(1, 2), (3, 70), (40, 3072)])
def test_a_gate_is_the_definition(implementation: Implementation, shape: tuple[int, int]) -> None:
    x = 20 * random(*shape)
    x[0, 0], x[-1, 1] = -200, 200
    y = layers.gate(jnp.asarray(x), implementation=implementation)
    first, second = np.split(x.astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(np.asarray(y), first / (1 + np.exp(-first)) * second, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_linear_layer_reads_what_stands_for_its_input(implementation: Implementation, rows: int, dtype: str) -> None:
    weight = packed_form([random(70, 330)], dtype, implementation)
    inputs = (
        Normed(jnp.asarray(random(rows, 330)), jnp.asarray(random(330)), 1e-5),
        Normed(jnp.asarray(random(rows, 330)), jnp.asarray(random(330)), 1e-5, centred=True),
        Normed(jnp.asarray(random(rows, 330)), jnp.asarray(random(330)), 1e-5, centred=True, bias=jnp.ones(330)),
        Gated(jnp.asarray(random(rows, 660))),
    )
    for x in inputs:
        array = layers.materialize(x, implementation=implementation)
        expected = layers.linear(array, weight, 70, implementation=implementation, onto=jnp.ones((rows, 70)))
        y = layers.linear(x, weight, 70, implementation=implementation, onto=jnp.ones((rows, 70)))
        np.testing.assert_array_equal(np.asarray(y), np.asarray(expected))


def test_native_layers_of_few_rows_compute_their_input_themselves() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    weight, norm = packed_form([random(70, 330)], "float32", "cpu"), jnp.ones(330)

    def calls(rows: int) -> list[str]:
        def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            return (
                layers.linear(Normed(x, norm, 1e-5), weight, 70, implementation="cpu"),
                layers.linear(Gated(y), weight, 70, implementation="cpu"),
            )

        lowered = jax.jit(both).lower(jnp.zeros((rows, 330)), jnp.zeros((rows, 660)))
        return sorted(re.findall(r"custom_call @(\w+)", lowered.as_text()))

    assert calls(32) == ["rekindle_linear"] * 2
    assert calls(100) == ["rekindle_gate", "rekindle_linear", "rekindle_linear", "rekindle_norm"]


def test_rows_of_native_layers_do_not_depend_on_the_rows_beside_them() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    x = random(60, 1100)
    norm = jnp.asarray(random(1100))
    gated = np.asarray(layers.gate(jnp.asarray(x), implementation="cpu"))
    centred = np.asarray(layers.layer_norm(jnp.asarray(x), norm, norm, 1e-6, implementation="cpu"))
    for dtype in DTYPES:
        weight = packed_form([random(100, 1100)], dtype, "cpu")
        linear = jax.jit(lambda x, weight=weight: layers.linear(x, weight, 100, implementation="cpu"))
        whole, normed = np.asarray(linear(x)), layers.rms_norm(jnp.asarray(x), norm, 1e-6, implementation="cpu")
        for begin, end in ((0, 1), (1, 3), (3, 14), (14, 27), (2, 59), (59, 60)):
            np.testing.assert_array_equal(
                np.asarray(linear(x[begin:end])).view(np.int32), whole[begin:end].view(np.int32)
            )
            part = layers.rms_norm(jnp.asarray(x[begin:end]), norm, 1e-6, implementation="cpu")
            np.testing.assert_array_equal(np.asarray(part), np.asarray(normed)[begin:end])
            part = layers.layer_norm(jnp.asarray(x[begin:end]), norm, norm, 1e-6, implementation="cpu")
            np.testing.assert_array_equal(np.asarray(part), centred[begin:end])
            part = layers.gate(jnp.asarray(x[begin:end]), implementation="cpu")
            np.testing.assert_array_equal(np.asarray(part), gated[begin:end])


def test_ids_out_of_range_read_nothing_outside_of_the_weight() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    weight = packed_form([random(64, 9)], "float32", "cpu")
    ids = jnp.array([-1, -(2**31), 64, 2**31 - 1], jnp.int32)
    rows = layers.look_up(weight, ids, (64, 9), implementation="cpu")
    np.testing.assert_array_equal(np.asarray(rows), random(64, 9)[[0, 0, 63, 63]])


def test_arguments_that_do_not_fit_are_refused(implementation: Implementation) -> None:
    weight = packed_form([random(64, 9)], "float32", implementation)
    with pytest.raises(ValueError, match=r"a weight \(64, 70\) has the form .* got"):
        layers.linear(jnp.zeros((2, 70)), weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"a weight \(64, 70\) has the form .* got"):
        layers.linear_columns(jnp.zeros((2, 70)), weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"3 weights have the form .* each, got"):
        layers.grouped_linear(jnp.zeros((2, 9)), jnp.zeros(3, jnp.int32), weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"a product \(2, 64\) cannot be added to \(2, 9\)"):
        layers.linear(jnp.zeros((2, 9)), weight, 64, implementation=implementation, onto=jnp.zeros((2, 9)))
    with pytest.raises(ValueError, match=r"heads \(2, 3, 8\), 1 of them keys, do not fit angles \(2, 5\) and \(2, 5\)"):
        layers.rotate(jnp.zeros((2, 3, 8)), jnp.zeros((2, 5)), jnp.zeros((2, 5)), 1, implementation=implementation)
    with pytest.raises(ValueError, match=r"two halves of features, got \(2, 7\)"):
        layers.gate(jnp.zeros((2, 7)), implementation=implementation)
    with pytest.raises(ValueError, match=r"weights \(64, 9\), \(3, 8\) together have the form"):
        layers.pack([random(64, 9), random(3, 8)], np.asarray(weight), implementation=implementation)
    with pytest.raises(ValueError, match=r"the weight and the bias of a norm over \(2, 9\) must be \(9,\), got \(8,\)"):
        layers.rms_norm(jnp.zeros((2, 9)), jnp.zeros(8), 1e-5, implementation=implementation)
    with pytest.raises(ValueError, match=r"the weight and the bias of a norm over \(2, 9\) must be \(9,\), got \(8,\)"):
        layers.linear(Normed(jnp.zeros((2, 9)), jnp.zeros(8), 1e-5), weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"the weight and the bias of a norm over \(2, 9\) must be \(9,\), got \(8,\)"):
        layers.layer_norm(jnp.zeros((2, 9)), jnp.zeros(9), jnp.zeros(8), 1e-5, implementation=implementation)
    biased = Normed(jnp.zeros((2, 9)), jnp.zeros(9), 1e-5, bias=jnp.zeros(9))
    with pytest.raises(ValueError, match="a norm with a bias must be centred"):
        layers.linear(biased, weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"two halves of features, got \(2, 19\)"):
        layers.linear(Gated(jnp.zeros((2, 19))), weight, 64, implementation=implementation)
    with pytest.raises(ValueError, match=r"a weight \(64, 8\) has the form .* got"):
        layers.linear(Gated(jnp.zeros((2, 16))), weight, 64, implementation=implementation)
