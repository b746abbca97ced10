"""Block sizes of the TPU kernels for each device kind, from tuning.json."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rekindle_kernels.devices import default_device


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes of one device kind.

    Attributes:
        cores: the number of cores with common memory, for a grid's parallel steps.
        step_rows: decode rows in a grid step.
        row_tile, row_tile_bytes: the maximum positions, and the maximum bytes, of a decode tile.
        row_stages: decode tiles in VMEM; all but one are being copied.
        window_rows: the maximum rows (tokens times grouped heads) of a prefill window for one key-value head.
        block_tile, block_tile_bytes, block_stages: the same for prefill.
        write_bytes: bytes of page slices changed at the same time.
        vmem_limit_bytes: the maximum VMEM for a kernel.
    """

    cores: int
    step_rows: int
    row_tile: int
    row_tile_bytes: int
    row_stages: int
    window_rows: int
    block_tile: int
    block_tile_bytes: int
    block_stages: int
    write_bytes: int
    vmem_limit_bytes: int


def tuning() -> Tuning:
    """Return the sizes for JAX's default device if it is a TPU, or the defaults for all kinds."""
    kinds, device = _kinds(), default_device()
    kind = device.device_kind if device.platform == "tpu" else "default"
    return kinds.get(kind, kinds["default"])


@cache
def _kinds() -> dict[str, Tuning]:
    text = resources.files("rekindle_kernels.tpu").joinpath("tuning.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return {kind: Tuning(**(data["default"] | sizes)) for kind, sizes in data.items()}
