"""Two processes serve a session as one does, and each survives or ends as promised when the other is killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.draft_heads import with_draft_head
from tests.families import COVERING

pytestmark = [pytest.mark.wide, pytest.mark.skipif(sys.platform == "win32", reason="signals")]

SECONDS = 60
"""The most seconds for an end; jax's own heartbeat notices it after 100 seconds."""


class Pair:
    """A leader under the test's commands, and its follower."""

    def __init__(self, model: Path):
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        self.follower = started("-m", "rekindle", "follow", address)
        self.leader = started("-m", "tests.mesh.hosts_child", address, str(model))

    def ask(self, *questions: str) -> None:
        """Send commands to the leader."""
        assert self.leader.stdin is not None
        self.leader.stdin.write("".join(f"{question}\n" for question in questions))
        self.leader.stdin.flush()

    def answer(self) -> Any:
        """Return the leader's next answer."""
        assert self.leader.stdout is not None
        while (line := self.leader.stdout.readline()).startswith("[Gloo]"):
            pass
        assert line, f"{ended(self.leader)}\n{ended(self.follower)}"
        return json.loads(line)


def started(*command: str) -> "subprocess.Popen[str]":
    pipe, environment = subprocess.PIPE, {"NPROC": "16", "JAX_PLATFORMS": "cpu"}
    whole = [sys.executable, "-W", "error", *command]
    return subprocess.Popen(whole, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for the end of a process; return its status and its outputs."""
    out, error = process.communicate(timeout=SECONDS)
    return process.returncode, out, error


@contextmanager
def pair(model: Path) -> Iterator[Pair]:
    both = Pair(model)
    try:
        yield both
    finally:
        for process in (both.leader, both.follower):
            process.kill()
            process.communicate()


@pytest.fixture
def model(families: Path, tmp_path: Path) -> Path:
    """Return a model; its sibling `changed` has other weights."""
    for name in ("model", "changed"):
        shutil.copytree(families / "llama-tied", tmp_path / name)
    weights = tmp_path / "changed" / "model.safetensors"
    save_file({name: array * 1.25 for name, array in load_file(weights).items()}, weights)
    return tmp_path / "model"


def test_two_processes_serve_as_one_and_either_may_be_killed(model: Path) -> None:
    expected = np.load(model / "golden.npz")["greedy_new"].tolist()
    with pair(model) as first:
        first.ask("hosts", "one device", "hosts", "int8", "update", "another", "die")
        cold, one, again = (first.answer() for _ in range(3))
        assert one["tokens"][0] == expected
        for answer in (cold, again):
            np.testing.assert_allclose(answer["states"], one["states"], atol=1e-4)
            assert answer["tokens"] == one["tokens"]
            np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-4)
            assert answer["cached"] == 16
            assert answer["preemptions"] > 0
            assert "of 2 processes" in answer["repr"]
        assert (cold["from disk"], again["from disk"]) == (0, 16), "what was saved is found, and sent to the follower"
        small, *others = first.answer()
        assert [answer["tokens"] for answer in others] == 2 * [small["tokens"]]
        assert [answer["from disk"] for answer in (small, *others)] == [0, 0, 16], (
            "neither of float32, nor of one device"
        )
        alone, together = first.answer()
        assert alone == together, "weights are replaced in all processes"
        assert alone[0] != alone[1] == one["tokens"][0][:9]
        description, refused = first.answer()
        assert "of 2 processes" in description, "a device of each, unless it is said how many"
        assert "one session at a time" in refused
        assert ended(first.leader)[0] == -signal.SIGKILL
        status, output, error = ended(first.follower)
        assert status == 1, "it ends by itself, and not by jax's abort"
        assert "as process 1 of 2" in output
        assert "is gone" in error
    with pair(model) as second:
        second.ask("warm", "break off")
        warm = second.answer()
        assert (warm["tokens"], warm["compilations"]) == (one["tokens"][0], 0)
        assert warm["loads"] > 0
        assert second.answer() == "streaming"
        second.follower.kill()
        _, output, _ = ended(second.follower)
        assert f"{warm['loads']} programs were loaded and 0 compiled" in output, (
            "each process has its own, in one store"
        )
        report = second.answer()
        assert len(report["errors"]) == 2, "the request that ran, and one that came after that"
        assert all("process 1 of 2" in error and "is lost" in error for error in [*report["errors"], report["repr"]])
        assert report["tokens"] == one["tokens"][0], "the leader goes on, on its own device"
        assert "lost" in report["hosts"]
        assert second.leader.stdin is not None
        second.leader.stdin.close()
        second.leader.stdin = None
        assert ended(second.leader)[0] == 0


def test_drafts_of_both_kinds_change_no_token_over_two_processes(families: Path, tmp_path: Path) -> None:
    model = with_draft_head(families / "glm4-moe", tmp_path / "model", "echo")
    with pair(model) as both:
        both.ask("drafts")
        several, one = both.answer()
    for answer in (several, one):
        assert answer["tokens"] == 3 * one["tokens"][:2]
        before, of_head, of_both = answer["drafts"]
        assert before == 0 < of_head < of_both


@pytest.mark.deep
@pytest.mark.parametrize("family", COVERING)
def test_every_part_of_a_decoder_is_shared_by_processes(family: str, families: Path) -> None:
    model = families / family
    with pair(model) as both:
        both.ask("hosts", "one device")
        shared, one = both.answer(), both.answer()
        assert shared["tokens"] == one["tokens"]
        assert shared["tokens"][0] == np.load(model / "golden.npz")["greedy_new"].tolist()
        both.leader.communicate(timeout=SECONDS)
        status, output, _ = ended(both.follower)
        assert status == 0
        assert output.endswith("the leader has ended\n")
