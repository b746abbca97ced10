"""A session over several devices gives the tokens of one, and finds what others have stored."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families import MODELS

COVERING = {"deepseek-v3": (2, 2), "olmo3": (8, 1)}
"""Latents and experts, in groups; norms over all heads, and fewer heads of keys than devices."""


def asked_of_child(*questions: tuple[Any, ...]) -> list[Any]:
    """Ask the functions of `mesh_child`, each as (name, arguments), in a process with eight devices."""
    text = json.dumps([[str(part) if isinstance(part, Path) else part for part in each] for each in questions])
    command = [sys.executable, "-W", "error", "-m", "tests.engine.mesh_child", text]
    child = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


def check(family: str, families: Path, meshes: list[tuple[int, int]]) -> None:
    """Check meshes, each as (tensor, data), of which the last is opened twice."""
    model, meshes = families / family, [*meshes, meshes[-1]]
    one, *others = asked_of_child(*(("served", model, *mesh) for mesh in [(1, 1), *meshes]))
    expected = np.load(model / "golden.npz")["greedy_new"].tolist()
    assert one["tokens"][0] == expected
    assert one["from disk"] == 0
    for (tensor, data), answer in zip(meshes, others, strict=True):
        assert answer["tokens"] == one["tokens"], f"on {data} groups of {tensor} devices"
        assert answer["drawn"] == one["drawn"]
        np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-4)
        assert answer["from disk"] == 16, "the pages that another number of devices has stored are found"
        assert answer["cached"] == 16
        assert f"cpu:0 to {data * tensor - 1})" in answer["repr"]
    assert max(answer["preemptions"] for answer in [one, *others]) > 0
    assert others[-1]["compilations"] == 0, "programs of several devices are stored and loaded"
    assert others[-1]["loads"] > 0


@pytest.mark.parametrize("family", COVERING)
def test_tokens_are_those_of_one_device(family: str, families: Path) -> None:
    check(family, families, [COVERING[family]])


@pytest.mark.deep
@pytest.mark.parametrize("family", MODELS)
def test_tokens_of_every_family_are_those_of_one_device(family: str, families: Path) -> None:
    check(family, families, [(2, 1), (4, 1), (8, 1), (1, 2), (2, 2)])


def test_a_step_reduces_twice_a_layer_and_one_device_not_at_all(families: Path) -> None:
    model, layers = families / "llama-tied", 3
    one, several, native, groups, refused, refused_groups = asked_of_child(
        ("program", model, 1, "xla"),
        ("program", model, 4, "xla"),
        ("program", model, 4, "cpu"),
        ("program", model, 2, "xla", 2),
        ("refusal", model, 9),
        ("refusal", model, 3, 3),
    )
    assert not any(word in one for word in ("all-reduce", "all-gather", "replica_groups", "partition-id"))
    for text in (several, native, groups):
        assert text.count(" all-reduce(") == 2 * layers + 1, "two a layer, and the embedding's"
        assert text.count(" all-gather(") == 1, "of logits"
    assert set(re.findall(r"replica_groups=\S+?}}", groups)) == {"replica_groups={{0,1},{2,3}}"}, (
        "each group for itself"
    )
    assert "tensor=9 needs as many devices from" in refused
    assert "data=3 times tensor=3 needs as many devices from" in refused_groups
