"""A session that uses all that JAX's settings could stop, in this process or in one of its own."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import jax

import rekindle
from rekindle.settings.engine import SettingsOptions

SETTINGS: SettingsOptions = {
    "num_pages": 6,
    "page_size": 16,
    "max_context": 80,
    "max_running": 2,
    "decode_buckets": (2,),
    "max_prefill_tokens": 64,
    "prefill_chunk": 64,
    "prefill_buckets": (64,),
    "max_logprobs": 2,
    "precompile": "lazy",
}
PROMPTS = [list(range(1, 50)), [7] * 49, [8] * 49, list(range(1, 50))]
"""Prompts that push each other out of the pool, so that the last is found in the host tier."""


def opened(model: Path, **settings: Unpack[SettingsOptions]) -> rekindle.Session:
    """Open a session."""
    return rekindle.open_sync(model, progress=False, **(SETTINGS | settings))


def answered(session: rekindle.Session, model: Path) -> dict[str, Any]:
    """Return what a session answers, greedily and by draws, before and after new weights, and what it took."""
    tokens = []
    for prompt in PROMPTS:
        answer = session.generate_sync(token_ids=prompt, max_tokens=3, ignore_eos=True, logprobs=2, logit_bias={3: 1.0})
        tokens.append(answer.token_ids)
    options: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "temperature": 1.0, "seed": 5, "top_k": 50}
    tokens.append(session.generate_sync(token_ids=[1, 2, 3], top_p=0.9, **options).token_ids)
    scored = session.generate_sync(token_ids=[[1, 2, 3]] * 2, max_tokens=2, prompt_logprobs=1)
    tokens += [answer.token_ids for answer in scored]
    session.save_sync(progress=False)
    session.update_weights_sync(model)
    tokens.append(session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, ignore_eos=True).token_ids)
    stats = session.stats
    return {
        "tokens": [list(ids) for ids in tokens],
        "onloaded": stats.scheduler.host_hit_tokens,
        "unexpected": stats.unexpected_compilations,
    }


def child(
    model: Path, when: str, values: Mapping[str, Any], environment: Mapping[str, str], devices: int = 1
) -> dict[str, Any]:
    """Return what a session in a process of its own answers.

    Args:
        when: values are set before the session is opened, at "open", or "after" that.
        values: of `jax.config`; a number as `jax_default_device` is the device of this number.
        environment: variables of the process, beside those of this one; JAX reads its own when it is imported.
        devices: how many CPU devices it has.
    """
    asked = json.dumps([str(model), when, dict(values), devices])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.engine.settings_child", asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return report


def _main() -> None:
    warnings.simplefilter("error")
    model, when, values, devices = json.loads(sys.argv[1])
    jax.config.update("jax_num_cpu_devices", devices)

    def put(now: str) -> None:
        for name, value in values.items() if when == now else ():
            jax.config.update(name, jax.devices()[value] if name == "jax_default_device" else value)

    put("open")
    session = opened(Path(model))
    put("after")
    report = answered(session, Path(model))
    report["device"] = session.device.id
    session.close_sync()
    sys.stdout.write(f"{json.dumps(report)}\n")


if __name__ == "__main__":
    _main()
