"""A session over several devices gives the tokens of one, and finds what others have stored."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.state import Sizes
from rekindle.core.device.step import step
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.draft_heads import with_draft_head
from tests.engine.pictured import GOLDEN, NUMBERS
from tests.families import MODELS
from tests.waiting import PATIENCE

pytestmark = pytest.mark.wide

WIRED_FIRST = ("gemma3n", "olmo3", "opt-350m")
WIRED = [*WIRED_FIRST, *(pytest.param(name, marks=pytest.mark.deep) for name in MODELS if name not in WIRED_FIRST)]
"""Sums of features and of means of activations, of means of norms, and of embeddings of another size than the residual
stream; then all others."""
COVERING = {
    "afmoe": [(2, 1, 1)],
    "deepseek-v3": [(2, 2, 1)],
    "falcon-h1-norm": [(4, 1, 1)],
    "gemma3n": [(2, 1, 1)],
    "gemma4-e": [(2, 1, 1)],
    "gemma4-moe": [(4, 1, 1)],
    "gpt-neox": [(2, 1, 1)],
    "gpt2": [(2, 1, 1)],
    "lfm2": [(2, 1, 1)],
    "llama4": [(2, 2, 1)],
    "olmo3": [(8, 1, 1), (2, 1, 2), (1, 1, 3)],
    "opt-350m": [(2, 1, 1)],
    "phimoe": [(2, 1, 1)],
    "qwen3-next": [(2, 1, 1)],
}
"""Gates of the output; latents and experts, in groups; Mamba-2 with groups of heads on several devices; sparse
activations; features of tokens, and layers that read the pages of another one; experts beside a layer, and keys as
values with fewer heads than devices; projections stored by head; learned positions, and matrices stored as (in, out);
short convolutions; attention in chunks, in groups; norms over all heads, and fewer heads of keys than devices;
projected embeddings; biases of logits; delta nets."""


def asked_of_child(*questions: tuple[Any, ...]) -> list[Any]:
    """Ask the functions of `mesh_child`, each as (name, arguments), in a process with eight devices."""
    text = json.dumps([[str(part) if isinstance(part, Path) else part for part in each] for each in questions])
    command = [sys.executable, "-W", "error", "-m", "tests.mesh.mesh_child", text]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


def check(family: str, families: Path, meshes: list[tuple[int, int, int]]) -> None:
    """Check meshes, each as (tensor, data, lanes), of which the last is opened three times.

    Its second start is the first that puts pages from disk into the pool, by a program that is compiled at first use.
    """
    model, meshes = families / family, [*meshes, meshes[-1], meshes[-1]]
    one, *others = asked_of_child(*(("serve", model, *mesh) for mesh in [(1, 1, 1), *meshes]))
    expected = np.load(model / "golden.npz")["greedy_new"].tolist()
    assert one["tokens"][0] == expected
    assert one["from disk"] == 0
    stored = {1}
    for (tensor, data, lanes), answer in zip(meshes, others, strict=True):
        assert answer["tokens"] == one["tokens"], f"in {lanes} lanes of {data} groups of {tensor} devices"
        assert all(answer["lanes"]), "every lane serves"
        assert answer["drawn"] == one["drawn"]
        np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-4)
        np.testing.assert_allclose(answer["states"], one["states"], atol=1e-4)
        assert answer["from disk"] == (16 if tensor in stored else 0), "sums over other devices have other bits"
        stored.add(tensor)
        assert answer["cached"] == 16
        assert f"cpu:0 to {data * tensor - 1}" in answer["repr"] or tensor == 1
        assert (f"in {lanes} lanes" in answer["repr"]) == (lanes > 1)
    assert max(answer["preemptions"] for answer in [one, *others]) > 0
    assert others[-1]["compilations"] == 0, "programs of several devices are stored and loaded"
    assert others[-1]["loads"] > 0


@pytest.mark.parametrize("family", COVERING)
def test_tokens_are_those_of_one_device(family: str, families: Path) -> None:
    check(family, families, COVERING[family])


@pytest.mark.deep
@pytest.mark.parametrize("family", MODELS)
def test_tokens_of_every_family_are_those_of_one_device(family: str, families: Path) -> None:
    check(family, families, [(2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 2, 2)])


def test_pages_of_int8_are_divided_moved_and_found_like_others(families: Path) -> None:
    model = families / "llama-tied"
    one, two, again, last, apart, moved = asked_of_child(
        ("serve", model, 1, 1, 1, "int8"),
        *3 * [("serve", model, 2, 2, 1, "int8")],
        ("apart", model, 0, 0, "int8"),
        ("apart", model, 2, 1, "int8"),
    )
    for answer in (two, again, last):
        assert (answer["tokens"], answer["drawn"]) == (one["tokens"], one["drawn"])
        np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-4)
        assert answer["cached"] == 16
    assert [answer["from disk"] for answer in (two, again, last)] == [0, 16, 16], "one device has other bits"
    assert last["compilations"] == 0
    assert moved["tokens"] == apart["tokens"]
    assert moved["moved"] == [2 + 1 + 2, 2 + 1 + 2, 0, 0]


ADAPTED = {
    "olmo3": [(2, 2, 1), (1, 1, 2)],
    "opt-350m": [(2, 1, 1)],
    "phimoe": [(2, 1, 1)],
    "qwen3-next": [(4, 1, 1)],
}
"""Heads of fewer keys than devices, in groups and lanes; projected embeddings; experts; states."""


@pytest.mark.parametrize("family", ADAPTED)
def test_adapters_are_shared_like_the_weights_that_they_change(family: str, families: Path) -> None:
    meshes = [(1, 1, 1), *ADAPTED[family]]
    one, *others = asked_of_child(*(("adapted", families / family, *mesh) for mesh in meshes))
    alone = one["tokens"]
    assert alone[0] == alone[3] == alone[4]
    assert alone[1] == alone[5]
    assert len({tuple(tokens) for tokens in (alone[0], alone[1], alone[2], alone[6])}) == 4
    for mesh, answer in zip(meshes[1:], others, strict=True):
        assert answer["tokens"] == alone, mesh
        np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-4)


def test_steering_and_looks_are_those_of_one_device(families: Path) -> None:
    meshes = [(1, 1, 1), (2, 2, 1), (1, 1, 2)]
    one, *others = asked_of_child(*(("steered", families / "llama-tied", *mesh) for mesh in meshes))
    for answer in (one, *others):
        assert answer["tokens"][1] == answer["tokens"][3] == one["golden"]
        assert answer["tokens"][0] == answer["tokens"][2] == one["tokens"][0] != one["golden"]
        assert answer["error"] < 1e-5


def test_lanes_have_devices_of_their_own_and_the_same_weights(families: Path) -> None:
    one, lanes = asked_of_child(("exchanged", families / "llama-tied", 1), ("exchanged", families / "llama-tied", 4))
    assert lanes["places"] == [[0], [1], [2], [3]]
    assert lanes["memory"] == [4 * one["memory"][0], 4]
    first, other, again = lanes["tokens"]
    assert [answers[:2] for answers in lanes["tokens"]] == one["tokens"]
    assert first == again != other
    assert all(lanes["lanes"])


def test_prompts_are_computed_by_other_devices_than_those_that_generate(families: Path) -> None:
    model = families / "llama-tied"
    one, pair, shared = asked_of_child(("apart", model, 0, 0), ("apart", model, 1, 1), ("apart", model, 2, 1))
    assert one["tokens"] == 4 * one["tokens"][:1]
    for answer in (pair, shared):
        assert answer["tokens"] == one["tokens"]
        assert answer["compilations"] == answer["unexpected"] == 0, "the last start finds its programs"
    pages = 2 + 1 + 2
    assert pair["moved"] == [pages, 0, 0, 0], "what is on disk is there already"
    assert shared["moved"] == [pages, pages, 0, 0], "what one device stored has other bits"
    assert pair["repr"] == "cpu:0 to prefill, cpu:1 to decode"
    assert shared["repr"] == "cpu:0 to 1 to prefill, cpu:2 to decode"


def bytes_sent(text: str, tensor: int) -> tuple[float, float]:
    """Return the bytes from each device of a ring in a program: of sums over all devices, and of gathers."""
    sizes = {"all-reduce": 0.0, "all-gather": 0.0}
    for shapes, kind in re.findall(r"= (.*?) (all-reduce|all-gather)\(", text):
        for shape in re.findall(r"f32\[([\d,]*)\]", shapes):
            sizes[kind] += 4 * math.prod(map(int, shape.split(",")))
    return 2 * sizes["all-reduce"] * (tensor - 1) / tensor, sizes["all-gather"] * (tensor - 1) / tensor


def test_a_step_reduces_twice_a_layer_and_one_device_not_at_all(families: Path) -> None:
    model, layers = families / "llama-tied", 3
    one, several, native, groups, refused, refused_groups, foreign, differing, (computed, draws, sums) = asked_of_child(
        ("program", model, 1, "xla"),
        ("program", model, 4, "xla"),
        ("program", model, 4, "cpu"),
        ("program", model, 2, "xla", 2),
        ("refusal", model, 9),
        ("refusal", model, 3, 3),
        ("elsewhere", model, 2),
        ("keys", model),
        ("wire_bytes", model, 4),
    )
    assert not any(word in one for word in ("all-reduce", "all-gather", "replica_groups", "partition-id"))
    for text, over_groups in ((several, 0), (native, 0), (groups, 1)):
        sent = text.count(" all-reduce(")
        assert sent == 2 * layers + 1 + over_groups, "two a layer, the embedding's, and the end of the steps"
        assert text.count(" all-gather(") == 1, "of logits"
    for text in (several, native):
        assert bytes_sent(text, 4) == (computed, draws)
    assert sums == 2 * layers + 1
    apart = set(re.findall(r"replica_groups=\S+?}}", groups))
    alone, together = "replica_groups={{0,1},{2,3}}", "replica_groups={{0,2},{1,3}}"
    assert apart == {alone, together}, "each group for itself, but for the end of the steps"
    assert "tensor=9 needs as many devices from" in refused
    assert "data=3 times tensor=3 needs as many devices from" in refused_groups
    error, compilations, unexpected = foreign
    assert re.match(r"the program 'gather' runs on cpu:0 to 1, but pages\[0\] is on .*3: move it", error)
    assert (compilations, unexpected) == (1, 0), "nothing is compiled for devices that are not the session's"
    assert differing == {
        "same": [],
        "turned": ["topology"],
        "others": ["topology"],
        "one": ["arguments", "statics", "topology"],
    }


def test_the_program_of_one_device_is_that_of_the_step_alone(families: Path) -> None:
    config, float32, bucket = open_checkpoint(families / "llama-tied").config, jnp.dtype("float32"), Bucket(0, 4)
    programs = Programs(config, Sizes(9, 16, 8, 4, 5), WeightForm(float32), Place((jax.devices()[0],)), "xla")
    abstract = abstract_decoder(config, WeightForm(float32), "xla")

    def alone(weights: list[jax.Array], pages: Any, slots: Any, packed: jax.Array) -> Any:
        return step(abstract.with_weights(weights), pages, slots, packed, bucket, 5)

    with programs.jax_settings.apply():
        expected = jax.jit(alone, donate_argnums=(1, 2)).lower(*programs.arguments(bucket).values())
    one, other = (computed(lowered.as_text()) for lowered in (programs.lower(bucket), expected))
    assert len(one) > 500
    assert one == other


def computed(text: str) -> list[str]:
    """Return the operations of a lowered program, line by line, without its name and the places of its arguments."""
    about = ("module @", "sdy.mesh @empty_mesh", "func.func public @main")
    return [line for line in text.splitlines() if not line.lstrip().startswith(about)]


@pytest.mark.parametrize("family", WIRED)
def test_the_bytes_on_the_wire_are_those_of_the_compiled_program(family: str, families: Path) -> None:
    model, tensor = families / family, 4
    text, (computed, draws, sums) = asked_of_child(("program", model, tensor, "xla"), ("wire_bytes", model, tensor))
    assert bytes_sent(text, tensor) == (computed, draws)
    assert text.count(" all-reduce(") <= sums, "the compiler may join some"


def test_a_model_is_on_the_fewest_devices_that_it_fits_or_on_those_of_a_mesh(families: Path) -> None:
    model, kb, order = families / "llama-tied", 1000, [5, 3, 1, 0]
    spread, turned, cpu, *choices = asked_of_child(
        ("open_model", model, {"memory": 500 * kb}),
        ("open_model", model, {"axes": {"tensor": 4}, "order": order}),
        ("choose", model, {}),
        *(("choose", model, {"memory": memory * kb}) for memory in (1200, 650, 500, 440)),
        ("choose", model, {"memory": 500 * kb, "device": "cpu"}),
        ("choose", model, {"memory": 500 * kb, "device": "cpu:3"}),
        ("choose", model, {"memory": 380 * kb}),
        ("choose", model, {"axes": {"model": 1, "tensor": 2}, "order": [2, 3]}),
    )
    assert cpu == [0], "the devices of a CPU share its memory"
    assert (spread["place"], spread["tensor"]) == ([0, 1, 2, 3], 4)
    assert "cpu:0 to 3, as it does not fit on fewer devices" in spread["text"]
    assert (turned["place"], turned["tensor"]) == (order, None), "the settings have the mesh, as it was given"
    assert "on cpu:5,3,1,0, sending" in turned["text"]
    expected = np.load(model / "golden.npz")["greedy_new"].tolist()
    for answer in (spread, turned):
        assert answer["tokens"] == expected[:6]
        assert answer["memory"]["devices"] == 4
        assert answer["memory"]["weights"] * 4 == answer["weights"]
        assert "on each of 4 devices" in answer["text"]
        assert "from each device to decode a token" in answer["text"]
    *places, platform, single, too_large, over = choices
    assert places == [[*range(count)] for count in (1, 2, 4, 8)]
    assert platform == [0, 1, 2, 3]
    assert "it does not fit on cpu:3: its weights" in single
    assert "the device has 500 kB in all" in single
    assert "it does not fit on cpu:0 to 7: its weights" in too_large
    assert "the 8 devices have 3.04 MB in all" in too_large
    assert over == [2, 3]


def test_several_steps_of_a_tick_are_those_of_one_device_in_every_group(families: Path) -> None:
    model = families / "llama-tied"
    (answer,) = asked_of_child(("open_model", model, {"tensor": 2, "data": 2, "decode_steps": 3}))
    assert answer["tokens"] == np.load(model / "golden.npz")["greedy_new"].tolist()[:6]


def test_programs_of_a_mesh_are_compiled_ahead_and_found(families: Path) -> None:
    (status, output, compilations, loads), text = asked_of_child(
        ("precompiled", families / "llama-tied", 4), ("informed", families / "llama-tied", 4)
    )
    assert status == 0
    assert "devices   4 of 8 cpu, tensor=4; float32" in output
    assert "7: 7 compiled" in output
    assert (compilations, loads) == (0, 7)
    rows = {line[:14].strip(): line[14:] for line in text.splitlines()}
    assert re.fullmatch(r"\d+ kB of weights, .* for a step, .* of pages, .* together, of 4 devices", rows["on each"])
    assert rows["each sends"].startswith("2.69 kB for a token of a prompt, in 7 sums over all devices, and ")


def test_images_are_read_on_any_mesh() -> None:
    meshes = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
    for answer in asked_of_child(*(("pictured", GOLDEN, *mesh) for mesh in meshes)):
        assert answer["tokens"] == [NUMBERS[f"{number}_greedy_new"].tolist() for number in (0, 1, 0)]
        assert answer["embedded"] == 3


SETS = {"prefill": ["cpu:0"], "decode": ["cpu:1", "cpu:2"], "prefill_from": 16}


@pytest.mark.parametrize("options", [{"tensor": 2, "data": 2}, {"replicas": 2}, SETS], ids=str)
def test_guesses_of_a_draft_head_change_no_token_on_several_devices(
    options: dict[str, Any], families: Path, tmp_path: Path
) -> None:
    model = with_draft_head(families / "glm4-moe", tmp_path / "model", "echo")
    shutil.copy(families / "glm4-moe" / "golden.npz", model)
    one, several = asked_of_child(("drafting", model, {}), ("drafting", model, options))
    greedy, _, drawn, _ = one["tokens"][:4]
    for answer in (one, several):
        assert answer["tokens"] == 4 * [greedy, greedy, drawn, drawn]
        assert answer["drafts"] > 0
        assert answer["compilations"] == 0


def test_states_go_on_from_the_last_right_token_on_several_devices(families: Path) -> None:
    model, options = families / "qwen3-next", {"tensor": 2, "data": 2, "draft": "lookup"}
    one, several = asked_of_child(("drafting", model, {"draft": "lookup"}), ("drafting", model, options))
    greedy, _, random, _ = one["tokens"][:4]
    for answer in (one, several):
        assert answer["tokens"] == 4 * [greedy, greedy, random, random]
        assert answer["drafts"] > 0
        assert answer["compilations"] == 0


def test_the_bytes_on_the_wire_of_a_draft_head_are_those_of_the_compiled_program(
    families: Path, tmp_path: Path
) -> None:
    model, tensor = with_draft_head(families / "deepseek-v3", tmp_path / "model"), 4
    text, (computed, draws, sums) = asked_of_child(
        ("program", model, tensor, "xla", 1, True), ("wire_bytes", model, tensor, True)
    )
    assert bytes_sent(text, tensor) == (computed, draws)
    assert text.count(" all-reduce(") <= sums, "the compiler may join some"
