"""Tile sizes of the GPU kernels for each device kind, from tuning.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import jax.numpy as jnp

Operation = Literal["rows", "blocks", "wgmma"]
"""The kernels: for decode rows, for blocks, and for blocks by the instructions of Hopper; see `warpgroups`."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of one program of a kernel.

    Attributes:
        queries: query tokens times heads per tile of keys; for the rows kernel, a lower bound.
        keys: positions per loop iteration.
        warps: the number of warps, of 32 threads each.
        stages: iterations with loads in flight at the same time.
    """

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """One device kind's entry of tuning.json.

    Attributes:
        programs: the minimum number of programs of the rows kernel, if the contexts are long enough.
        tiles: the tiles by operation, dtype and head dimension.
    """

    programs: int
    tiles: Mapping[tuple[str, str, int], Tile]

    def find(self, operation: Operation, dtype: jnp.dtype, head_dim: int) -> Tile | None:
        """Return the tile of exactly this head dimension, or None: the device does not use the kernel for it."""
        return self.tiles.get((operation, dtype.name, head_dim))

    def tile(self, operation: Operation, dtype: jnp.dtype, head_dim: int) -> Tile:
        """Return the tile of the smallest tuned head dimension not below `head_dim`, or else of the largest.

        Pages of int8 have the tiles of bfloat16, the dtype of their products, and so does float16, of the same size.
        """
        of = "bfloat16" if dtype in (jnp.int8, jnp.float16) else dtype.name
        choices = sorted(dims for name, stored, dims in self.tiles if (name, stored) == (operation, of))
        nearest = next((dims for dims in choices if dims >= head_dim), choices[-1])
        return self.tiles[operation, of, nearest]


@cache
def tuning(device_kind: str) -> Tuning:
    """Return the tuning.json entry with the longest name at the start of `device_kind`, on top of the default."""
    entries = json.loads(resources.files(__package__).joinpath("tuning.json").read_text(encoding="utf-8"))
    best = max((name for name in entries if device_kind.startswith(name)), key=len, default="default")
    tiles = {}
    for entry in (entries["default"], entries[best]):
        for operation, dtype, dims, numbers in _leaves(entry["tiles"]):
            tiles[operation, dtype, dims] = Tile(**numbers)
    return Tuning(entries[best]["programs"], tiles)


def _leaves(
    tiles: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
) -> list[tuple[str, str, int, Mapping[str, int]]]:
    return [
        (operation, dtype, int(dims), numbers)
        for operation, by_dtype in tiles.items()
        for dtype, by_dims in by_dtype.items()
        for dims, numbers in by_dims.items()
    ]
