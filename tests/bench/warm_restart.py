"""Measure the time from a process's start to its first token: with empty stores, with full ones, and of transformers.

They take turns. Each start is a process of its own with one prompt; the model file is always there.
The time of the first token after `open` is also measured with the pages on disk, next to their computation.

The timeline has the parts of each start, which add up: the interpreter, the import of the libraries, the parts of
`open` as in `session.restored.spent`, what is left of `open`, and the first token. Next to it stands `import jax`.
"cpu" has the CPU seconds of all threads until `open` returns, and "kept" the MB of weights that were not converted.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from rekindle.core.store.directory import cache_dir
from tests.bench.machine import cores
from tests.bench.peers import ROOT, prepare
from tests.bench.say import say, waiting
from tests.bench.workload import MODEL

OURS = """
import json, os, sys, time
started = float(sys.argv[1])
began = time.time()
import rekindle
rekindle.open_sync  # imports the libraries
imported = time.time()
session = rekindle.open_sync(sys.argv[2], dtype="float32", progress=False, **json.loads(sys.argv[4]))
opened, spent_cpu = time.time(), time.process_time()
spent = dict(session.restored.spent)
prompt = json.loads(sys.argv[3])
answer = session.generate_sync(token_ids=prompt, max_tokens=1, ignore_eos=True)
ended = time.time()
first = ended - opened
session.precompiled_sync(progress=False)
session.save_sync()
stats = session.stats
print(json.dumps(dict(
    total=ended - started, imported=imported - started, opened=opened - started, first=first, loads=stats.loads,
    timeline={"python": began - started, "import": imported - began, **spent,
              "rest of open": opened - imported - sum(spent.values()), "first token": first},
    cpu=spent_cpu, kept=session.restored.weight_bytes / 1e6, compilations=stats.compilations,
    cached=answer.cached_tokens, token=answer.token_ids[0],
)))
"""
JAX = """
import json, sys, time
import jax
print(json.dumps(dict(total=time.time() - float(sys.argv[1]))))
"""
THEIRS = """
import json, sys, time
started = float(sys.argv[1])
import torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(int(sys.argv[4]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32).eval()
opened = time.time()
prompt = torch.tensor([json.loads(sys.argv[3])])
with torch.inference_mode():
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False)
ended = time.time()
print(json.dumps(dict(total=ended - started, opened=opened - started, first=ended - opened)))
"""


def prompt(number: int, tokens: int) -> list[int]:
    """Make a prompt of token ids that shares no page with the prompts of other numbers."""
    return [1000 + (7919 * number + 31 * place) % 40000 for place in range(tokens)]


class Starts:
    """Processes over one cache directory with stores to empty; each answers a prompt of so many tokens."""

    def __init__(self, home: Path, tokens: int):
        home.chmod(0o700)
        (home / "models").symlink_to(cache_dir("models"))
        self._home, self._tokens = home, tokens

    def empty(self) -> None:
        """Empty the stores, to start as after the download of the model."""
        for name in ("programs", "snapshots", "weights"):
            shutil.rmtree(self._home / name, ignore_errors=True)

    def ours(self, number: int, **options: Any) -> dict[str, Any]:
        """Start Rekindle with some options of `open`, and answer a prompt."""
        return self._run([sys.executable, "-c", OURS], MODEL, number, [json.dumps(options)])

    def jax(self) -> dict[str, Any]:
        """Start Python and import jax."""
        return self._run([sys.executable, "-c", JAX], "", 0, [])

    def theirs(self, python: str, model: Path, number: int) -> dict[str, Any]:
        """Start transformers and answer a prompt."""
        return self._run([python, "-c", THEIRS], str(model), number, [str(cores())])

    def _run(self, argv: list[str], model: str, number: int, more: list[str]) -> dict[str, Any]:
        environment = os.environ | {"REKINDLE_CACHE": str(self._home), "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles our sources anew, and no wheel's
        command = [*argv, str(time.time()), model, json.dumps(prompt(number, self._tokens)), *more]
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise SystemExit(f"{argv[0]} failed:\n{done.stdout}{done.stderr}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def measure(rounds: int, tokens: int, *, peer: bool) -> None:
    """Print medians over the rounds and their ratios."""
    results: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "cache").mkdir()
        starts = Starts(Path(directory) / "cache", tokens)
        theirs, python = Path(directory) / "hf", ""
        if peer:
            command = prepare("hf", "float32")
            python, gguf = command.argv[0], command.argv[command.argv.index("--gguf") + 1]
            with waiting("transformers: saving its model as float32 safetensors"):
                save = [python, "-m", "tests.bench.plain_model", gguf, str(theirs)]
                subprocess.run(save, cwd=ROOT, check=True, capture_output=True)
        for round_ in range(rounds):
            starts.empty()
            for name, number, options in (
                ("cold", round_, {}),
                ("warm", round_, {}),
                ("warm, weights converted", round_, {"weight_cache_bytes": 0}),
                ("warm programs, new prompt", 100 + round_, {}),
            ):
                with waiting(f"round {round_ + 1} of {rounds}: {name}"):
                    results[name].append(starts.ours(number, **options))
            results["import jax"].append(starts.jax())
            if peer:
                with waiting(f"round {round_ + 1} of {rounds}: transformers"):
                    results["transformers"].append(starts.theirs(python, theirs, round_))
    _report(results, tokens)


def _report(results: dict[str, list[dict[str, Any]]], tokens: int) -> None:
    say(f"medians in seconds, prompts of {tokens} tokens, {cores()} cores:")
    keys = ("imported", "opened", "cpu", "first", "total", "loads", "compilations", "cached", "kept")
    print(f"{'':28}" + "".join(f"{key:>13}" for key in keys))
    for name, rounds in results.items():
        values = [median(each[key] for each in rounds) if key in rounds[0] else None for key in keys]
        print(f"{name:28}" + "".join(f"{'' if value is None else f'{value:13.2f}':>13}" for value in values))
    for cold, warm in zip(results["cold"], results["warm"], strict=True):
        assert cold["token"] == warm["token"], "a warm start answered something else"
        assert warm["compilations"] == 0, "a warm start compiled"
        assert warm["kept"], "a warm start converted its weights"
    ratio = median(warm["total"] / cold["total"] for warm, cold in zip(results["warm"], results["cold"], strict=True))
    print(f"warm / cold start: {ratio:.3f} (asked: at most 0.35)")
    parts = list(results["warm"][0]["timeline"])
    print(f"{'timeline':28}" + "".join(f"{part:>13}" for part in parts))
    for name, rounds in results.items():
        if "timeline" in rounds[0]:
            print(
                f"{name:28}" + "".join(f"{median(each['timeline'][part] for each in rounds):13.2f}" for part in parts)
            )
    imports = median(each["total"] for each in results["import jax"])
    over = median(
        warm["total"] - 1.35 * jax["total"] for warm, jax in zip(results["warm"], results["import jax"], strict=True)
    )
    print(f"warm start beyond 1.35 times {imports:.2f} s of import jax: {over:.2f} s (asked: at most 0.3)")
    new = "warm programs, new prompt"
    disk = median(warm["first"] / cold["first"] for warm, cold in zip(results["warm"], results[new], strict=True))
    print(f"first token after open, pages from disk / computed: {disk:.3f} (asked: at most 0.25)")
    if "transformers" in results:
        for name in ("warm", new):
            pairs = zip(results[name], results["transformers"], strict=True)
            ratio = median(ours["total"] / theirs["total"] for ours, theirs in pairs)
            print(f"{name} / transformers' start: {ratio:.3f} (asked: at most 0.58)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=512, help="in a prompt")
    parser.add_argument("--peer", action="store_true", help="also transformers, in an environment of its own")
    arguments = parser.parse_args()
    measure(arguments.rounds, arguments.tokens, peer=arguments.peer)
