"""A process with sessions over hosts, on the commands of its test, line by line."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

# More threads than cores, or collectives wait for each other.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

import rekindle
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.settings.engine import KvDtype, SettingsOptions
from tests.engine.reports import report_of
from tests.engine.sampled import MIXED, SEEDED
from tests.engine.small import FEW_PAGES

OF_HOSTS: SettingsOptions = {**FEW_PAGES, "tensor": 2}


def say(message: Any) -> None:
    """Write a line for the test."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def prompt_of(model: Path) -> list[int]:
    """Return the prompt of a family's greedy tokens."""
    prompt: list[int] = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    return prompt


def serve(model: Path, hosts: rekindle.Hosts | None, kv_dtype: KvDtype | None = None) -> dict[str, Any]:
    """Answer alone, in a mixed batch that preempts, and from the cache; over hosts, or on one device."""
    prompt = prompt_of(model)
    greedy: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    settings: SettingsOptions = {**(OF_HOSTS if hosts else FEW_PAGES), "kv_dtype": kv_dtype}
    with rekindle.open_sync(model, progress=False, hosts=hosts, **settings) as session:
        alone = session.generate_sync(token_ids=prompt, **greedy)
        prompts = [prompt[:5], prompt, prompt[3:], prompt[1:]]
        options: list[dict[str, Any]] = [{}, SEEDED, MIXED, {"logprobs": 2}]
        handles = [session.submit(token_ids=ids, **greedy, **more) for ids, more in zip(prompts, options, strict=True)]
        mixed = [handle.result() for handle in handles]
        again = session.generate_sync(token_ids=prompt, **greedy)
        states = [session.embed_sync(token_ids=[prompt, prompt[4:]], pooling=way) for way in ("last", "mean")]
        return {
            "states": np.stack(states).tolist(),
            "tokens": [each.token_ids for each in (alone, *mixed, again)],
            "logprobs": [each.logprob for each in mixed[3].logprobs or ()],
            **report_of(session, alone, again),
        }


def warm(model: Path, hosts: rekindle.Hosts) -> dict[str, Any]:
    """Return an answer, and the session's counts of compiled and loaded programs."""
    with rekindle.open_sync(model, progress=False, hosts=hosts, **OF_HOSTS) as session:
        answer = session.generate_sync(token_ids=prompt_of(model), max_tokens=24, ignore_eos=True)
        return {
            "tokens": answer.token_ids,
            "compilations": session.stats.compilations,
            "loads": session.stats.loads,
        }


def updated(model: Path, hosts: rekindle.Hosts | None) -> list[Any]:
    """Return the answers of a model with other weights, and with its own again."""
    answers: list[Any] = []
    with rekindle.open_sync(model, progress=False, hosts=hosts, **(OF_HOSTS if hosts else FEW_PAGES)) as session:
        for weights in (model.with_name("changed"), model):
            session.update_weights_sync(weights)
            answers.append(session.generate_sync(token_ids=prompt_of(model), max_tokens=9, ignore_eos=True).token_ids)
    return answers


def with_drafts(model: Path, hosts: rekindle.Hosts | None) -> dict[str, Any]:
    """Answer without and with drafts of both kinds, verified however unlikely they are; over hosts, or on one device.

    Args:
        model: a model with a draft head.
        hosts: the hosts, or None.
    """
    prompts, tokens = [[5, 9, 7] * 4, [*range(3, 20)]], list[Any]()
    drafts: list[int] = []
    settings: Any = {**(OF_HOSTS if hosts else FEW_PAGES), "num_pages": 16, "restore": "off", "draft": "mtp"}
    likely = mock.patch.object(Chances, "of", return_value=0.9)
    with likely, rekindle.open_sync(model, progress=False, hosts=hosts, **settings) as session:
        for draft in (False, "mtp", "lookup"):
            for more in (dict[str, Any](), SEEDED):
                options: Any = {**more, "max_tokens": 24, "ignore_eos": True, "draft": draft}
                answers = session.generate_sync(token_ids=prompts, **options)
                tokens.append([answer.token_ids for answer in answers])
            drafts.append(session.stats.scheduler.drafts)
    return {"tokens": tokens, "drafts": drafts}


def broken_off(model: Path, hosts: rekindle.Hosts) -> dict[str, Any]:
    """Report a streaming request; return the errors of it and of the next one, and a local session's answer."""
    prompt = prompt_of(model)
    session = rekindle.open_sync(model, progress=False, hosts=hosts, **OF_HOSTS)
    errors = []
    try:
        for place, _ in enumerate(session.submit(token_ids=prompt, max_tokens=40, ignore_eos=True)):
            if place == 2:
                say("streaming")
    except rekindle.HostLost as error:
        errors.append(str(error))
    try:
        session.generate_sync(token_ids=prompt)
    except rekindle.HostLost as error:
        errors.append(str(error))
    description = repr(session)
    session.close_sync()
    with rekindle.open_sync(model, progress=False, **FEW_PAGES) as local:
        tokens = local.generate_sync(token_ids=prompt, max_tokens=24, ignore_eos=True).token_ids
    return {"errors": errors, "repr": description, "tokens": tokens, "hosts": repr(hosts)}


def main(address: str, model: Path) -> None:
    """Do one thing after the other."""
    # Pages of other devices and types are stored beside, and the parent makes warnings errors.
    warnings.filterwarnings("ignore", "the stored prefixes of", RuntimeWarning)
    hosts = rekindle.Hosts(listen=address)
    for line in sys.stdin:
        match line.strip():
            case "update":
                say([updated(model, None), updated(model, hosts)])
            case "one device":
                say(serve(model, None))
            case "hosts":
                say(serve(model, hosts))
            case "int8":
                say([serve(model, each, "int8") for each in (None, hosts, hosts)])
            case "drafts":
                say([with_drafts(model, each) for each in (hosts, None)])
            case "warm":
                say(warm(model, hosts))
            case "break off":
                say(broken_off(model, hosts))
            case "another":
                with rekindle.open_sync(model, progress=False, hosts=hosts, **FEW_PAGES) as session:
                    try:
                        rekindle.open_sync(model, progress=False, hosts=hosts, **FEW_PAGES)
                    except rekindle.ConfigError as error:
                        say([repr(session), str(error)])
            case "die":
                session = rekindle.open_sync(model, progress=False, hosts=hosts, **OF_HOSTS)
                for _ in session.submit(token_ids=prompt_of(model), max_tokens=40, ignore_eos=True):
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
