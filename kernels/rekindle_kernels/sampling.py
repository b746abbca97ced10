"""What sampling computes over the vocabulary of each row. Arguments are checked here.

Logits are (vocabulary, rows), the order in which `layers.linear_columns` leaves them.
"""

import jax

from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.penalties import Penalties


def argmax(columns: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Return the first token with the largest logit of each row, or one whose logit is NaN or infinity, if any is.

    Args:
        columns: (vocabulary, rows) float32.
        implementation: by name.

    Returns:
        (rows,) int32.

    Raises:
        ValueError: an unknown implementation.
    """
    return operations_of(implementation).argmax(columns)


def nth_largest(columns: jax.Array, n: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Return the `n`-th largest logit of each row.

    Args:
        columns: (vocabulary, rows) float32.
        n: (rows,) int32.
        implementation: by name.

    Returns:
        (rows,) float32, minus infinity where n is not from 1 to the vocabulary less one.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
    """
    _check(columns, n)
    return operations_of(implementation).nth_largest(columns, n)


def count_above(columns: jax.Array, bound: jax.Array, *, implementation: Implementation) -> jax.Array:
    """Count the logits of each row that are above a bound.

    Args:
        columns: (vocabulary, rows) float32.
        bound: (rows,) float32.
        implementation: by name.

    Returns:
        (rows,) int32.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
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
    """Sum `exp((logit - largest) / temperature)` over the tokens of each row whose logits are not below `least`.

    Args:
        columns: (vocabulary, rows) float32.
        largest, temperature, least: (rows,) float32. No logit is above `largest`, and temperatures are positive.
        implementation: by name.

    Returns:
        (rows,) float32.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
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
    """Draw a token of each row by the Gumbel-max trick, from those whose logits are not below `least`.

    It is the one with the largest sum of `(logit - largest) / temperature` and its noise, which is a pure function of
    the row's keys and the token: see `xla.noise`.

    Args:
        columns: (vocabulary, rows) float32.
        keys: two words of each row, (rows,) uint32.
        largest, temperature, least: (rows,) float32. No logit is above `largest`, and temperatures are positive.
        implementation: by name.

    Returns:
        (rows,) int32, the first of equal ones.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
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
    """Change the logits of each row by the bias and the marks of its slot.

    In this order: bias, repetition penalty, frequency and presence penalty, the ban of ends.

    Args:
        columns: (vocabulary, rows) float32.
        bias: (slots, vocabulary) float32.
        marks: (slots, vocabulary) int32, of the bits in `penalties`.
        owners: (rows,) int32, the slot of each row, or -1 for one that stays as it is.
        penalties: of the rows.
        implementation: by name.

    Returns:
        (vocabulary, rows) float32.

    Raises:
        ValueError: arguments that do not fit together, or an unknown implementation.
    """
    _check(columns, owners, *jax.tree.leaves(penalties))
    if not bias.shape == marks.shape == (len(bias), len(columns)):
        raise ValueError(f"logits {columns.shape} need slots over their tokens, got {bias.shape} and {marks.shape}")
    return operations_of(implementation).adjust(columns, bias, marks, owners, penalties)


def _check(columns: jax.Array, *of_rows: jax.Array) -> None:
    if any(each.shape != columns.shape[1:] for each in of_rows):
        shapes = ", ".join(str(each.shape) for each in of_rows)
        raise ValueError(f"logits {columns.shape} need one number of each kind for each row, got {shapes}")
