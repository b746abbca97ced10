"""Tiles of the kernel by warpgroups, for heads that no device was measured with too; and its interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax

from rekindle_kernels.gpu.target import Target, tracing_for
from rekindle_kernels.gpu.tuning import Tile, Tuning, tuning

TILES = {64: Tile(128, 128, 12, 4), 128: Tile(128, 128, 12, 2)}
"""The tile for each head_dim: as many stages as fit into shared memory."""
HOPPER = "NVIDIA H100 80GB HBM3"


def with_warpgroups(device_kind: str, keys: int = 128, stages: int | None = None) -> Tuning:
    """Return the tuning of a device, with tiles for this kernel."""
    tiles = {
        ("wgmma", "bfloat16", head_dim): replace(tile, keys=keys, stages=stages or tile.stages)
        for head_dim, tile in TILES.items()
    }
    own = tuning(device_kind)
    return Tuning(own.programs, {**own.tiles, **tiles})


@contextmanager
def interpreted(keys: int = 64, stages: int = 2) -> Iterator[None]:
    """Interpret the kernel with small tiles, and find races. On a GPU, run it there with the true tiles."""
    if jax.default_backend() == "gpu":
        device_kind = jax.devices()[0].device_kind
        with tracing_for(Target(device_kind, trial=with_warpgroups(device_kind))):
            yield
        return
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, params

    interpreter = params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True))
    target = Target(HOPPER, interpret=True, trial=with_warpgroups(HOPPER, keys, stages))
    try:
        with tracing_for(target), interpreter:
            yield
        assert not gpu_callbacks.get_races().races_found
    finally:
        gpu_callbacks.reset_gpu_interpret_mode_state()
