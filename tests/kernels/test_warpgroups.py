"""Hopper's kernel for prompts holds to the reference in float64, without races. Without a GPU, it is interpreted."""

from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels import api
from rekindle_kernels.gpu.tuning import Tile
from tests.kernels.cases import Contexts, Shape, queries, scale_of, stored
from tests.kernels.suite import Suite
from tests.kernels.warpgroups import TILES, interpreted


def is_here() -> bool:
    """Return True if JAX has the instructions, and the device too, if it is a GPU."""
    if jax.__version_info__ < (0, 10):
        return False
    return jax.default_backend() != "gpu" or jax.devices()[0].compute_capability == "9.0"


pytestmark = [pytest.mark.wide, pytest.mark.skipif(not is_here(), reason="needs JAX 0.10, and Hopper on a GPU")]


class Warpgroups(Suite):
    """The checks of a suite. Most of its tests have options, and do not run here."""

    implementation = "gpu"

    def running(self) -> AbstractContextManager[None]:
        return interpreted()


def test_a_chunk_over_a_cached_prefix_with_whole_tiles_unmasked() -> None:
    Warpgroups().check_blocks(Shape(1, 4, 128, page_size=32, pages_per_sequence=5, dtype="bfloat16"), [(6, 2)], 1)


def test_several_sequences_in_one_tile_go_round_the_buffer() -> None:
    shape = Shape(1, 1, 64, page_size=16, pages_per_sequence=12, dtype="bfloat16")
    Warpgroups().check_blocks(shape, [(0, 3), (8, 4), (7, 1)], 2)


def test_heads_of_a_group_that_is_no_power_of_two_and_several_key_heads() -> None:
    Warpgroups().check_blocks(Shape(2, 3, 64, page_size=64, pages_per_sequence=1, dtype="bfloat16"), [(0, 2)], 0)


def test_one_sequence_s_nan_stays_out_of_another_in_the_same_tile() -> None:
    shape = Shape(1, 2, 64, dtype="bfloat16")
    contexts = Contexts(shape, [(0, 32), (0, 32)])
    contexts.numbers[contexts.table[1, 0], 1] = np.nan
    q = jnp.asarray(queries(shape, 4, 16), jnp.float32)
    arrays = (contexts.table, np.asarray([0, 0, 1, 1], np.int32), np.asarray([0, 16, 0, 16], np.int32))
    pages = stored(contexts.numbers, shape.dtype, "gpu")
    with interpreted():
        out = api.attend_blocks(q, pages, *map(jnp.asarray, arrays), scale=scale_of(shape), implementation="gpu")
    assert np.isfinite(out[:2]).all()
    assert np.isnan(out[2:]).all()


@pytest.mark.parametrize(
    ("shape", "tokens", "reason"),
    [
        (Shape(dtype="bfloat16"), 16, None),
        (Shape(dtype="float32"), 16, "bfloat16"),
        (Shape(dtype="bfloat16", head_dim=256), 16, "64 or 128"),
        (Shape(dtype="bfloat16", page_size=12), 12, "a multiple of 8 tokens that divides 128"),
        (Shape(dtype="bfloat16"), 12, "a number of tokens that divides 128"),
    ],
)
def test_other_calls_are_left_to_the_other_kernel(shape: Shape, tokens: int, reason: str | None) -> None:
    from rekindle_kernels.gpu import warpgroups

    q = jax.ShapeDtypeStruct((4, tokens, shape.heads, shape.head_dim), jnp.float32)
    pages = jax.ShapeDtypeStruct(shape.pool(1), jnp.dtype(shape.dtype))
    answer = warpgroups.unsupported_reason(q, pages, TILES[64])
    assert (answer is None) if reason is None else (reason in str(answer))


def test_an_earlier_jax_leaves_all_calls_to_the_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle_kernels.gpu import warpgroups

    pages = jax.ShapeDtypeStruct((9, 2, 8, 32, 128), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((4, 16, 8, 128), jnp.float32)
    assert warpgroups.unsupported_reason(q, pages, TILES[128]) is None
    monkeypatch.setattr(jax, "__version_info__", (0, 7, 2))
    assert "needs JAX 0.10" in str(warpgroups.unsupported_reason(q, pages, TILES[128]))


def test_tiles_fit_into_shared_memory() -> None:
    def size(head_dim: int, tile: Tile) -> int:
        return 2 * head_dim * (128 + 2 * tile.stages * tile.keys)

    assert all(size(head_dim, tile) <= 227 * 1024 - 2048 for head_dim, tile in TILES.items())
