"""Sampling operations over the vocabulary of each row, with checks of arguments.

Logits are (vocabulary, rows), the output order of `layers.linear_columns`.
"""

import jax

from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.penalties import Penalties


def argmax(columns: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Return the first token with each row's largest logit, or a token with a logit of NaN or infinity, if any.

    Args:
        columns: (vocabulary, rows) float32.
        implementation: by name.

    Returns:
        (rows,) int32.

    Raises:
        ValueError: the implementation is unknown.
    """
    return operations_of(implementation).argmax(columns)


def nth_largest(columns: jax.Array, n: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Return the `n`-th largest logit of each row.

    Args:
        columns: (vocabulary, rows) float32.
        n: (rows,) int32.
        implementation: by name.

    Returns:
        (rows,) float32, minus infinity unless 1 <= n < vocabulary.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(columns, n)
    return operations_of(implementation).nth_largest(columns, n)


def count_above(columns: jax.Array, bound: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Count the logits of each row above a bound.

    Args:
        columns: (vocabulary, rows) float32.
        bound: (rows,) float32.
        implementation: by name.

    Returns:
        (rows,) int32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(columns, bound)
    return operations_of(implementation).count_above(columns, bound)


def mass(
    columns: jax.Array,
    largest: jax.Array,
    temperature: jax.Array,
    least: jax.Array,
    *,
    implementation: Implementation,
) -> jax.Array:
    """Sum `exp((logit - largest) / temperature)` over the tokens of each row with logits of at least `least`.

    Args:
        columns: (vocabulary, rows) float32.
        largest, temperature, least: (rows,) float32. No logit is above `largest`, and temperatures are positive.
        implementation: by name.

    Returns:
        (rows,) float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(columns, largest, temperature, least)
    return operations_of(implementation).mass(columns, largest, temperature, least)


def draw(
    columns: jax.Array,
    keys: tuple[jax.Array, jax.Array],
    largest: jax.Array,
    temperature: jax.Array,
    least: jax.Array,
    *,
    implementation: Implementation,
) -> jax.Array:
    """Sample a token of each row by the Gumbel-max trick, from the tokens with logits of at least `least`.

    It is the token with the largest sum of `(logit - largest) / temperature` and noise. The noise is a pure function of
    the row's keys and the token: see `xla.noise`.

    Args:
        columns: (vocabulary, rows) float32.
        keys: the two words of each row's key, (rows,) uint32.
        largest, temperature, least: (rows,) float32. No logit is above `largest`, and temperatures are positive.
        implementation: by name.

    Returns:
        (rows,) int32, the first token of equal ones.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(columns, *keys, largest, temperature, least)
    return operations_of(implementation).draw(columns, keys, largest, temperature, least)


def adjust(
    columns: jax.Array,
    bias: jax.Array,
    marks: jax.Array,
    owners: jax.Array,
    penalties: Penalties,
    *,
    implementation: Implementation,
) -> jax.Array:
    """Adjust the logits of each row by the bias and the marks of its slot.

    The order is: bias, repetition penalty, frequency and presence penalty, ban of end tokens.

    Args:
        columns: (vocabulary, rows) float32.
        bias: (slots, vocabulary) float32.
        marks: (slots, vocabulary) int32, the bits and counts of `penalties`.
        owners: (rows,) int32, the slot of each row, or -1 for an unchanged row.
        penalties: the penalties of the rows.
        implementation: by name.

    Returns:
        (vocabulary, rows) float32.

    Raises:
        ValueError: the arguments do not fit together, or the implementation is unknown.
    """
    _check(columns, owners, *jax.tree.leaves(penalties))
    if not bias.shape == marks.shape == (len(bias), len(columns)):
        raise ValueError(f"logits {columns.shape} need slots over their tokens, got {bias.shape} and {marks.shape}")
    return operations_of(implementation).adjust(columns, bias, marks, owners, penalties)


def _check(columns: jax.Array, *of_rows: jax.Array) -> None:
    if any(each.shape != columns.shape[1:] for each in of_rows):
        shapes = ", ".join(str(each.shape) for each in of_rows)
        raise ValueError(f"logits {columns.shape} need one number of each kind for each row, got {shapes}")
