"""Tile sizes of the GPU kernels, kept for each device kind in tuning.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import jax.numpy as jnp

Operation = Literal["rows", "blocks"]


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of one program of a kernel.

    Attributes:
        queries: query tokens times heads that share a tile of keys; for the rows kernel, the least such number.
        keys: positions that one loop iteration visits.
        warps: the number of warps, of 32 threads each.
        stages: iterations whose loads are in flight at the same time.
    """

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """One device kind's entry of tuning.json.

    Attributes:
        programs: the least number of programs that the rows kernel splits its work into, if contexts are long enough.
        tiles: by operation, dtype and head dimension.
    """

    programs: int
    tiles: Mapping[tuple[str, str, int], Tile]

    def tile(self, operation: Operation, dtype: jnp.dtype, head_dim: int) -> Tile:
        """Return the tile of the smallest listed head dimension that is at least `head_dim`, or else of the largest."""
        listed = sorted(dims for name, stored, dims in self.tiles if (name, stored) == (operation, dtype.name))
        held = next((dims for dims in listed if dims >= head_dim), listed[-1])
        return self.tiles[operation, dtype.name, held]


@cache
def tuning(device_kind: str) -> Tuning:
    """Return the entry of tuning.json whose name begins `device_kind`, the longest of several, over the default."""
    entries = json.loads(resources.files(__package__).joinpath("tuning.json").read_text(encoding="utf-8"))
    named = max((name for name in entries if device_kind.startswith(name)), key=len, default="default")
    tiles = {}
    for entry in (entries["default"], entries[named]):
        for operation, dtype, dims, numbers in _leaves(entry["tiles"]):
            tiles[operation, dtype, dims] = Tile(**numbers)
    return Tuning(entries[named]["programs"], tiles)


def _leaves(
    tiles: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
) -> list[tuple[str, str, int, Mapping[str, int]]]:
    return [
        (operation, dtype, int(dims), numbers)
        for operation, by_dtype in tiles.items()
        for dtype, by_dims in by_dtype.items()
        for dims, numbers in by_dims.items()
    ]
