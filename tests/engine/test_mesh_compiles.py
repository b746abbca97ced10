"""The real compilers take the steps of eight absent TPUs and of eight absent GPUs, with our kernels."""

import re
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import pytest
from jax.experimental.serialize_executable import serialize

from rekindle.assembly.devices import candidate_places, place_from
from rekindle.cli.models.targets import devices_of
from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.key import Target
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.state import Sizes
from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.models.weights.form import WeightForm
from rekindle.results.facts.traffic import Wire

without_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler, libtpu, is not installed")
without_cuda = pytest.mark.skipif(
    not any(point.name.startswith("xla_cuda") for point in metadata.entry_points(group="jax_plugins")),
    reason="the CUDA compiler, jax's plugin, is not installed",
)

MISTRAL_7B = ModelConfig.llama("llama", 32000, 4096, 14336, 32, 32, 8, 128, 8192, 1e-5, Rope(10000.0))
LAYERS, DEVICES = 2, 8
CONFIG = replace(MISTRAL_7B, layers=MISTRAL_7B.layers[:LAYERS])  # the other layers are the same
SIZES = Sizes(num_pages=1025, page_size=64, pages_per_request=32, max_running=32, max_logprobs=5)
DECODE, PREFILL = Bucket(0, 8), Bucket(64, 0)


@cache
def eight(target: str) -> Place:
    return place_from(devices_of(target), DEVICES)


@pytest.mark.parametrize(
    ("target", "bucket"),
    [
        pytest.param("tpu:v5e:2x4", DECODE, marks=without_libtpu),
        pytest.param("tpu:v6e:2x4", DECODE, marks=(without_libtpu, pytest.mark.deep)),
        pytest.param("tpu:v5e:2x4", PREFILL, marks=(without_libtpu, pytest.mark.deep)),
        pytest.param("tpu:v6e:2x4", PREFILL, marks=without_libtpu),
        pytest.param("cuda:h100:8", DECODE, marks=without_cuda),
        pytest.param("cuda:h100:8", PREFILL, marks=without_cuda),
    ],
)
def test_a_step_of_eight_devices_compiles_and_sums_twice_a_layer(target: str, bucket: Bucket) -> None:
    place = eight(target)
    programs = Programs(CONFIG, SIZES, WeightForm(jnp.dtype("bfloat16")), place)
    assert programs.shapes.implementation == place.first.platform
    lowered = programs.lower(bucket)
    check_collectives(lowered.as_text(), bucket)
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    pool = SIZES.num_pages * programs.shapes.state.page_bytes // DEVICES
    assert memory.alias_size_in_bytes >= pool, "a device's pages are donated"
    assert memory.temp_size_in_bytes < pool * 3 / 4, "there is no room for a copy of them"
    assert memory.argument_size_in_bytes < (programs.shapes.weight_bytes / DEVICES + pool) * 1.2, "each has its share"
    payload, _, _ = serialize(compiled)
    assert (b"attend_rows" if bucket.decode_rows else b"attend_blocks") in payload


def check_collectives(text: str, bucket: Bucket) -> None:
    """Count the collectives in the text of a lowered program, as any version of libtpu can give it."""
    rows, kinds = bucket.size, re.findall(r"stablehlo\.(all_\w+|collective_\w+|reduce_scatter)", text)
    samples = bucket.decode_rows or bucket.prefill_tokens // 16
    gathered = 2 if bucket.prefill_tokens else 1  # the log-probabilities of a prompt are another
    assert sorted(kinds) == ["all_gather"] * gathered + ["all_reduce"] * (2 * LAYERS + 1)
    forms = [[*map(int, shape.split("x"))] for shape in re.findall(r"-> tensor<([\dx]+)xf32>", "".join(ends(text)))]
    sums, wire = [shape for shape in forms if shape[1] == CONFIG.hidden_size], Wire.of(CONFIG, DEVICES)
    assert sums == [[rows, CONFIG.hidden_size]] * wire.sums
    assert wire.sums * CONFIG.hidden_size == wire.sum_elements
    assert [wire.logit_elements, samples] in forms


def ends(text: str) -> list[str]:
    """Return the types of the results of all collectives."""
    whole = re.findall(r'"stablehlo\.all_(?:reduce|gather)".*?\) (-> tensor<[\dx]+xf32>)', text, re.DOTALL)
    return [str(end) for end in whole]


@without_libtpu
@pytest.mark.parametrize("generation", ["v5e", "v6e"])
def test_the_chips_of_a_host_have_one_process_and_the_order_of_a_mesh(generation: str) -> None:
    devices = devices_of(f"tpu:{generation}:2x4")
    assert {device.process_index for device in devices} == {0}
    place = place_from(devices, DEVICES)
    assert [device.id for device in place.devices] == [0, 1, 2, 3, 7, 6, 5, 4]
    assert str(place) == "tpu:0 to 7"
    assert [[device.id for device in each.devices] for each in candidate_places(devices)[:3]] == [
        [0],
        [0, 1],
        [0, 1, 2, 3],
    ]
    several: Any = devices_of(f"tpu:{generation}:4x4")
    assert len({device.process_index for device in several}) == 4, "larger ones are of hosts with four chips"
    assert Target.of(several).topology.endswith(" of 16, in process 0")


@without_cuda
def test_the_gpus_of_a_host_have_one_process_and_the_key_of_attached_ones() -> None:
    devices = eight("cuda:h100:8").devices
    assert {device.process_index for device in devices} == {0}
    assert Target.of(devices).topology == " ".join(f"gpu:{number}@0" for number in range(DEVICES))
    assert Target.of(devices[::-1]) != Target.of(devices), "another order is another program"
