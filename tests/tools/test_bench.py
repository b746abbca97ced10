"""The bench gives no speed to a peer that crashes."""

import sys
from collections.abc import Iterator

import pytest

from tests.bench import rounds
from tests.bench.contenders import Contender, ContenderEnded
from tests.bench.peers import Command
from tests.bench.report import tables
from tests.bench.workload import NEW_TOKENS

WORKER = """
import json, os, signal, sys
print(json.dumps({"version": "1"}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if ask["do"] == "batch":
        os.kill(os.getpid(), signal.SIGSEGV)
    tokens = [[0] * ask["new_tokens"]] * len(ask.get("prompts", [0]))
    print(json.dumps({"ttft_s": 0.1, "decode_tps": 7.0, "wall_s": 1.0, "tokens": tokens}), flush=True)
"""
LIMITS = {"bandwidth": 1e9, "float32": 1e9, "bfloat16": 1e9}


@pytest.fixture
def peer() -> Iterator[Contender]:
    with Contender("llamacpp:float32", Command([sys.executable, "-c", WORKER], {})) as contender:
        contender.wait_loaded()
        yield contender


def test_a_peer_that_crashes_is_reported_so_and_has_no_speed(peer: Contender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "measure_limits", lambda: LIMITS)
    one = rounds.Round(1, [peer])
    records = one.run(["single", "batch", "shared"])
    assert peer.ended == "SIGSEGV"
    assert len(records[0]["tokens"][0]) == NEW_TOKENS
    assert [record.get("ended") for record in records] == [None] * 3 + ["SIGSEGV"] * 2
    (line,) = [each for each in tables(records, one.limits, [peer.name]).splitlines() if each.startswith(peer.name)]
    assert "7.0" in line
    assert line.count("crashed: SIGSEGV") == 2, "in the batch, and in all that follows"


def test_a_crash_says_how_the_process_ended_and_what_it_wrote() -> None:
    script = "import sys; sys.stderr.write('no such file'); sys.exit(3)"
    match = r"(?s)hf:float32 ended with status 3:.*no such file"
    with Contender("hf:float32", Command([sys.executable, "-c", script], {})) as contender, \
         pytest.raises(ContenderEnded, match=match):  # fmt: skip
        contender.wait_loaded()


def test_packed_weights_have_speeds_and_no_limit_of_a_dtype() -> None:
    speeds = {"ours:float32": 4.0, "ours:packed": 8.0, "llamacpp:packed": 2.0}
    records = [
        {"round": 1, "contender": name, "what": "single", "others": 0.0, "decode_tps": speed, "ttft_ms": 1.0}
        for name, speed in speeds.items()
    ]
    text = tables(records, [LIMITS], list(speeds))
    (ratio,) = [line for line in text.splitlines() if line.startswith("ours:packed / llamacpp:packed")]
    assert "4.00" in ratio
    assert "ours:float32 single, each token" in text
    assert "ours:packed single, each token" not in text
