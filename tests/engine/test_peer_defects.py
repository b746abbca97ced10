"""Defects of other engines, numbered from 1 to 20, are not in Rekindle.

Some have their tests in other files:

- 3, `min_p` of negative logits: unit/test_sampling.py
- 4, stop strings with another tokenization: unit/test_stop_strings*.py
- 5 and 20, blocking calls and interrupts in a notebook: notebook/
- 6, 7, 8, 12, 16 and 18, the ends, cancels, token ids and streams of requests: test_requests.py
- 11, a prompt close: notebook/test_exit.py
- 13, 14 and 17, the statistics, mixed hits and eviction of the prefix cache: test_prefix_cache.py
- 15, late tokens of a slot's last request: unit/test_scheduler*.py and test_interleavings.py
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.device import packing
from rekindle.core.engine.actors import stepper
from tests.engine.small import SMALL
from tests.waiting import PATIENCE

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def session(families: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(families / "qwen3", progress=False, precompile="lazy", **SMALL) as session:
        yield session


@pytest.mark.wide
def test_1_no_buffer_is_written_after_its_dispatch(session: rekindle.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because the device may read the buffer, and its arrays may alias it, until the tick has ended."""
    dispatched: list[tuple[Any, Any]] = []

    def recorded(*arguments: Any) -> Any:
        packed = packing.pack_plan(*arguments)
        dispatched.append((packed, packed.copy()))
        return packed

    monkeypatch.setattr(stepper, "pack_plan", recorded)
    session.generate_sync(token_ids=[PROMPT, PROMPT[1:], [9] * 70], max_tokens=30, ignore_eos=True)
    assert 4 < len(dispatched) <= session.stats.scheduler.ticks, "a tick with the rows of the last has its buffer"
    assert len({packed.ctypes.data for packed, _ in dispatched}) == len(dispatched), "memory is reused"
    for packed, at_dispatch in dispatched:
        np.testing.assert_array_equal(packed, at_dispatch)


@pytest.mark.wide
def test_2_logit_bias_and_repetition_penalty_are_applied(session: rekindle.Session) -> None:
    free = session.generate_sync(token_ids=PROMPT, max_tokens=40, ignore_eos=True).token_ids
    banned = session.generate_sync(
        token_ids=PROMPT, max_tokens=40, ignore_eos=True, logit_bias={free[0]: float("-inf")}
    ).token_ids
    assert free[0] not in banned
    target = next(token for token in range(512) if token not in free)
    forced = session.generate_sync(token_ids=PROMPT, max_tokens=5, ignore_eos=True, logit_bias={target: 1e6}).token_ids
    assert forced == (target,) * 5
    unrepeated = session.generate_sync(token_ids=PROMPT, max_tokens=40, ignore_eos=True, repetition_penalty=1000.0)
    assert len(set(unrepeated.token_ids)) == 40
    assert not set(unrepeated.token_ids) & set(PROMPT)


@pytest.mark.wide
def test_9_a_greedy_row_beside_sampled_rows_takes_the_likeliest(session: rekindle.Session) -> None:
    alone = session.generate_sync(token_ids=PROMPT, max_tokens=20, ignore_eos=True).token_ids
    hot: dict[str, Any] = {"temperature": 2.0, "max_tokens": 40, "ignore_eos": True}
    strangers = [session.submit(token_ids=[place + 1], seed=place, **hot) for place in range(3)]
    beside = session.generate_sync(token_ids=PROMPT, max_tokens=20, ignore_eos=True, logprobs=0)
    assert beside.token_ids == alone
    assert beside.logprobs is not None
    assert {score.rank for score in beside.logprobs} == {1}
    for stranger in strangers:
        stranger.result(timeout=PATIENCE)


@pytest.mark.wide
def test_10_seed_and_log_probabilities_do_something(session: rekindle.Session) -> None:
    def draw(seed: int) -> rekindle.Generation:
        return session.generate_sync(token_ids=PROMPT, max_tokens=20, temperature=1.5, seed=seed, logprobs=2)

    assert draw(1).token_ids == draw(1).token_ids != draw(2).token_ids
    scores = draw(1).logprobs
    assert scores is not None
    assert all(one.logprob < 0 and len(one.top) == 2 and one.top[0].logprob >= one.logprob for one in scores)


IMPORT = """
import json, os, sys
import jax
before = dict(os.environ), {name: getattr(jax.config, name) for name in dir(jax.config) if name.startswith("jax_")}
import rekindle
after = dict(os.environ), {name: getattr(jax.config, name) for name in dir(jax.config) if name.startswith("jax_")}
heavy = [name for name in ("tokenizers", "gguf", "huggingface_hub", "jinja2", "ipywidgets") if name in sys.modules]
print(json.dumps([before == after, heavy]))
"""


@pytest.mark.wide
def test_11_importing_changes_nothing_and_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, []]


@pytest.mark.wide
def test_19_keys_of_prefixes_are_the_same_in_every_process() -> None:
    """Check the bytes of tokens in keys: Python's `hash` is salted."""
    code = (
        "from rekindle.core.scheduler.cache.tree import PrefixTree; print(PrefixTree(4).next_page('', [1, 2, 3, 400]))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert keys == {f"{('', bytes.fromhex('01000000020000000300000090010000'))}\n"}
