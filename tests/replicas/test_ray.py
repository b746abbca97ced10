"""Replicas in real actors of Ray: the same tokens whatever dies, and warm after the death of the notebook's process."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.replicas import keeping
from rekindle.session.session import Session
from tests.draft_heads import with_draft_head
from tests.engine.small import SMALL
from tests.waiting import PATIENCE, until_blocking

OPTIONS: dict[str, Any] = {"dtype": "float32", "progress": False, **SMALL}
CALLS: list[dict[str, Any]] = [
    {"max_tokens": 60},
    {"max_tokens": 60, "temperature": 1.0, "seed": 1, "logprobs": 2},
    {"max_tokens": 60, "temperature": 0.8, "top_p": 0.9, "seed": 2, "frequency_penalty": 0.5, "min_tokens": 20},
    {"max_tokens": 40, "temperature": 1.0, "top_k": 20, "seed": 3, "prompt_logprobs": 2},
    {"max_tokens": 60, "repetition_penalty": 1.2, "seed": 4, "temperature": 1.0, "min_p": 0.05},
]


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    return families / "qwen3"


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[list[int]]:
    prompt = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    return [prompt[:size] for size in (len(prompt), 3, 17, 9)]


@pytest.fixture(scope="module")
def replicas(cluster: str, model: Path) -> Iterator[Session]:
    with rekindle.open_sync(model, replicas=rekindle.Ray(2, address=cluster, name="shared"), **OPTIONS) as session:
        yield session


@pytest.fixture(scope="module")
def expected(model: Path, prompts: list[list[int]]) -> list[list[Any]]:
    """Return the outcomes of one engine in this process for each call, by prompt."""
    with rekindle.open_sync(model, **OPTIONS) as alone:
        return [
            [outcome_of(alone.generate_sync(token_ids=prompt, ignore_eos=True, **call)) for prompt in prompts]
            for call in CALLS
        ]


def outcome_of(answer: rekindle.Generation) -> Any:
    return answer.token_ids, answer.finish_reason, answer.logprobs, answer.prompt_logprobs


def ask_all(session: Session, prompts: list[list[int]]) -> list[list[Any]]:
    handles = [[session.submit(token_ids=prompt, ignore_eos=True, **call) for prompt in prompts] for call in CALLS]
    return [[outcome_of(handle.result()) for handle in row] for row in handles]


def processes(cluster: str) -> dict[str, int]:
    """Return the number of the process of each replica, by name."""
    return {each.name: each.about.process for each in keeping.replicas(cluster) if each.about is not None}


def test_tokens_are_those_of_one_engine(replicas: Session, prompts: list[list[int]], expected: list[list[Any]]) -> None:
    assert ask_all(replicas, prompts) == expected
    until_blocking(lambda: all(lane.ended for lane in replicas.stats.lanes), "both have served")
    assert len(replicas.cache.lanes) == 2


def die(cluster: str, replicas: Session, prompts: list[list[int]], expected: list[list[Any]], random: Random) -> None:
    """Kill a replica's process while all calls are computed, and wait until it is there again."""
    name, process = random.choice(sorted(processes(cluster).items()))
    delay = threading.Timer(random.random() * 0.5, os.kill, (process, signal.SIGKILL))
    delay.start()
    assert ask_all(replicas, prompts) == expected
    delay.join()
    until_blocking(lambda: processes(cluster).get(name) not in (None, process), "the replica is there again")


def test_a_replica_that_dies_changes_no_token(
    cluster: str, replicas: Session, prompts: list[list[int]], expected: list[list[Any]]
) -> None:
    for seed in range(5):
        die(cluster, replicas, prompts, expected, Random(seed))


@pytest.mark.deep
def test_many_that_die_change_no_token(
    cluster: str, replicas: Session, prompts: list[list[int]], expected: list[list[Any]]
) -> None:
    random = Random()
    for _ in range(200):
        die(cluster, replicas, prompts, expected, random)


def test_new_weights_are_those_of_a_replica_that_dies_too(cluster: str, model: Path, prompts: list[list[int]]) -> None:
    scaled = {name: np.asarray(tensor) * 1.5 for name, tensor in weights_of(model).items()}
    with rekindle.open_sync(model, **OPTIONS) as alone:
        alone.update_weights_sync(scaled)
        there = alone.generate_sync(token_ids=prompts[0], max_tokens=8, ignore_eos=True).token_ids
    with rekindle.open_sync(model, replicas=rekindle.Ray(1, address=cluster, name="exchanged"), **OPTIONS) as session:
        session.update_weights_sync(scaled)
        assert session.generate_sync(token_ids=prompts[0], max_tokens=8, ignore_eos=True).token_ids == there
        name = next(name for name in processes(cluster) if name.startswith("exchanged"))
        os.kill(processes(cluster)[name], signal.SIGKILL)
        assert session.generate_sync(token_ids=prompts[0][:5], max_tokens=8, ignore_eos=True).token_ids
        assert session.generate_sync(token_ids=prompts[0], max_tokens=8, ignore_eos=True).token_ids == there


def test_drafts_change_no_token_of_a_replica(cluster: str, families: Path, tmp_path: Path) -> None:
    model = with_draft_head(families / "glm4-moe", tmp_path / "model", "echo")
    prompts = [[5, 9, 7] * (4 * place) for place in range(1, 5)]
    with rekindle.open_sync(model, **OPTIONS) as undrafted:
        answers = undrafted.generate_sync(token_ids=prompts, ignore_eos=True, **CALLS[1])
        expected = [outcome_of(answer) for answer in answers]
    for draft in ("mtp", "lookup"):
        where: Any = {"replicas": rekindle.Ray(1, address=cluster, name=draft), "draft": draft, "precompile": "all"}
        with rekindle.open_sync(model, **OPTIONS | where) as session:
            for choice in (None, False, "lookup", None):
                call = {**CALLS[1], "draft": choice}
                answers = session.generate_sync(token_ids=prompts, ignore_eos=True, **call)
                assert [outcome_of(answer) for answer in answers] == expected
                # Four requests fill the largest step; one leaves room for a draft.
                alone = session.generate_sync(token_ids=prompts[0], ignore_eos=True, **call)
                assert outcome_of(alone) == expected[0]
            # The counters come with the replica's next status, after the answers.
            until_blocking(lambda: session.stats.scheduler.drafts > 0, "the replica's counters name drafts")
            assert session.stats.unexpected_compilations == 0


def weights_of(model: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_a_notebook_that_is_killed_finds_its_replicas_and_their_prefixes(
    cluster: str, model: Path, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[dict[str, Any]] = []
    before: dict[str, int] = {}
    for _ in range(2):
        command = [sys.executable, "-W", "error", "-m", "tests.replicas.replicas_child", cluster, str(model)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            answers.append(json.loads(child.stdout.readline()))
            child.kill()
        current = {name: process for name, process in processes(cluster).items() if name.startswith("qwen3-")}
        before = before or current
        assert {name: process for name, process in current.items() if name in before} == before
    first, second = answers
    assert first["tokens"] == second["tokens"]
    assert first["found"] == 0
    assert second["found"] >= len(prompts[0]) // 16, "the request left behind may have left a page too"
    assert second["cached"] == (len(prompts[0]) - 1) // 16 * 16
    assert not any(answer["jax"] for answer in answers), "the notebook's process has used a device"
    assert main(["replicas", "stop", "--address", cluster, *before]) == 0
    assert capsys.readouterr().out.count("stopped qwen3-") == 2
    assert not before.keys() & processes(cluster).keys()


def test_what_is_not_kept_ends_with_its_process(cluster: str, model: Path) -> None:
    code = (
        "import rekindle, os; from tests.engine.small import SMALL\n"
        f"where = rekindle.Ray(1, address={cluster!r}, name='short-lived')\n"
        f"rekindle.open_sync({str(model)!r}, replicas=where, progress=False, dtype='float32', **SMALL)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE)
    until_blocking(
        lambda: not any(each.name.startswith("short-lived") for each in keeping.replicas(cluster)), "it has ended"
    )


def test_errors_of_a_replica_are_those_of_open(cluster: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(rekindle.ModelNotFound):
        rekindle.open_sync(tmp_path / "nothing", replicas=rekindle.Ray(1, address=cluster), **OPTIONS)
    with pytest.raises(rekindle.ConfigError, match="max_context"):
        rekindle.open_sync(model, replicas=rekindle.Ray(1, address=cluster), **OPTIONS | {"max_context": 10**9})
    assert not any(each.name.startswith("nothing") for each in keeping.replicas(cluster))
