"""Describe absent TPUs: the real compiler compiles for a topology by its name."""

import os
from typing import Final

import jax
import pytest
from jax.experimental import topologies

V5E, V6E, V5P = "v5e:2x2", "v6e:2x2", "v5p:2x2x1"
KINDS: Final = {V5E: "TPU v5 lite", V6E: "TPU v6 lite", V5P: "TPU v5"}
"""The kind of each topology's devices."""

# libtpu would look for a TPU, ask the network for its name, and admit one process at a time. All this is not needed.
ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def chip(topology: str) -> jax.sharding.Sharding:
    """Return one chip of a topology; skip the test if there is no compiler for it."""
    pytest.importorskip("libtpu", reason="libtpu, the TPU compiler, is not installed: pip install libtpu")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    device: jax.Device = topologies.get_topology_desc(topology, "tpu").devices[0]
    assert device.device_kind == KINDS[topology]
    return jax.sharding.SingleDeviceSharding(device)
