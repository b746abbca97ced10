"""The reference itself equals explicit sums in numpy."""

import numpy as np
import pytest

from tests.kernels.cases import BLOCK_TOKENS, Contexts, Floats, Shape, expected_blocks, expected_rows, queries, scale_of

pytestmark = pytest.mark.kernel

SHAPES = (
    Shape(group=3),
    Shape(window=20),
    Shape(soft_cap=1.5, page_size=32),
    Shape(window=7, soft_cap=0.5, kv_heads=1, head_dim=80),
)


def by_hand(shape: Shape, q: Floats, contexts: Contexts, sequence: int, last: int) -> Floats:
    """Compute one query, (heads, head_dim), that sees the positions before `last`, one sum after the other."""
    first = 0 if shape.window is None else max(0, last - shape.window)
    out = np.zeros_like(q)
    for head in range(shape.heads if last else 0):
        places = [divmod(position, shape.page_size) for position in range(first, last)]
        pairs = [contexts.numbers[contexts.table[sequence, i], :, head // shape.group, j] for i, j in places]
        scores = np.asarray([key @ q[head] for key, _ in pairs]) * scale_of(shape)
        if shape.soft_cap is not None:
            scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
        weights = np.exp(scores - scores.max())
        out[head] = sum(w * value for w, (_, value) in zip(weights / weights.sum(), pairs, strict=True))
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_softmax_weighted_sum_of_the_values_that_it_sees(shape: Shape) -> None:
    visible = np.asarray([0, 1, 16, 17, 61], np.int32)
    window = shape.longest if shape.window is None else shape.window
    contexts = Contexts(shape, [(max(0, last - window), last) for last in visible.tolist()])
    q = queries(shape, len(visible))
    expected = [by_hand(shape, q[row], contexts, row, last) for row, last in enumerate(visible.tolist())]
    np.testing.assert_allclose(expected_rows(shape, q, contexts, visible), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_sees_what_is_before_it_and_itself_causally(shape: Shape) -> None:
    owners, starts = np.asarray([1, 1, 0, 0], np.int32), np.asarray([16, 32, 0, -1], np.int32)
    contexts = Contexts(shape, [(0, 16), (0, 48)])
    q = queries(shape, len(owners), BLOCK_TOKENS)
    actual = expected_blocks(shape, q, contexts, owners, starts)
    for block, (owner, start) in enumerate(zip(owners.tolist(), starts.tolist(), strict=True)):
        for token in range(BLOCK_TOKENS):
            expected = by_hand(shape, q[block, token], contexts, owner, 0 if start < 0 else start + token + 1)
            np.testing.assert_allclose(actual[block, token], expected, rtol=1e-10, atol=1e-12)
