"""Run another project's server tests against a running server, and count the failures by their reasons.

Nothing is fetched. The tests run in a copy of the checkout, in the environment of `--python`, with the fixture that
starts a server replaced by one with the given address. All else is theirs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.peers.causes import cause_of
from tests.peers.suites import SUITES, Suite

HOW = """\
These run the tests of others against a server of ours, and fetch nothing:

  git clone --depth 1 https://github.com/vllm-project/vllm        # or the sdist of the wheel, from PyPI
  git clone --depth 1 https://github.com/ggml-org/llama.cpp       # or vendor/llama.cpp in llama-cpp-python's sdist
  uv venv peers && uv pip install --python peers/bin/python openai anthropic pytest pytest-asyncio requests httpx \\
      jsonschema regex numpy filelock aiohttp prometheus-client pydantic pybase64 pillow fastapi safetensors wget
  rekindle serve smollm2-135m-instruct --name peer --port 8000 &
  make test-peers PEERS='vllm vllm http://127.0.0.1:8000 --python peers/bin/python'
  make test-peers PEERS='llama.cpp llama.cpp http://127.0.0.1:8000 --python peers/bin/python'

Some files need a model that sees, or a server with keys. A tiny model will do, and answers in less time:

  rekindle serve tests/goldens/vision/smolvlm --name peer --port 8001 &
  rekindle serve tests/goldens/vision/smolvlm --name peer --port 8002 --api-key test \\
      --api-key sk-this-is-the-secret-key &
  make test-peers PEERS='vllm-pictures vllm http://127.0.0.1:8001 --python peers/bin/python'
  make test-peers PEERS='vllm-keys vllm http://127.0.0.1:8002 --python peers/bin/python'

and the same for llama.cpp-pictures and llama.cpp-keys. Failures are counted by the causes in tests/peers/causes.py.
"""
PLUGIN = Path(__file__).with_name("plugin.py")
NAMES_SHOWN = 4
WIDTH = 150


def main(arguments: Sequence[str]) -> int:
    """Run a suite; without arguments, say how. Failures are counted, and are no failure of this command."""
    if not arguments:
        print(HOW)
        return 0
    parser = argparse.ArgumentParser("python -m tests.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("checkout", type=Path, help="a folder with the project's sources")
    parser.add_argument("url", help="the server's address, such as http://127.0.0.1:8000")
    parser.add_argument("--model", default="peer", help="the model's name there (peer)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of an environment with their imports")
    parser.add_argument("--seconds", type=float, default=60, help="the longest time of one test (60)")
    parser.add_argument("tests", nargs="*", help="files of the suite to run (all)")
    options = parser.parse_intermixed_args(arguments)
    suite = SUITES[options.suite]
    if unlisted := list(suite.unlisted(options.checkout)):
        print(f"files without an entry in tests/peers: {', '.join(unlisted)}")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        copy = suite.copy(options.checkout.resolve(), Path(directory) / "copy", options.model)
        shutil.copy(PLUGIN, copy.root / "peers_plugin.py")
        environment = os.environ | suite.environment(options.url, options.model)
        environment |= {"PEERS_REPORT": str(report), "PEERS_SECONDS": str(options.seconds)}
        environment |= {"PEERS_CHECKOUT": str(options.checkout.resolve()), "PYTHONPATH": str(copy.root)}
        command = [options.python, "-m", "pytest", "-p", "peers_plugin", "-p", "no:cacheprovider", "-q", "--tb=no"]
        command += ["--continue-on-collection-errors"]
        command += [*suite.options, *(options.tests or suite.present(copy))]
        subprocess.run(command, cwd=copy.start, env=environment, check=False)
        if not report.exists():
            print(f"the tests of {options.suite} did not end; their imports may be missing in {options.python}")
            return 1
        print(table(suite, urlsplit(options.url).netloc, json.loads(report.read_text(encoding="utf-8"))))
    return 0


def table(suite: Suite, address: str, outcomes: Sequence[dict[str, str]]) -> str:
    """Return the counts of a run and of its causes, and the failures without one by reason, the most frequent first."""
    counts: dict[str, int] = defaultdict(int)
    groups: dict[str, list[str]] = defaultdict(list)
    by_cause: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        counts[outcome["outcome"]] += 1
        if outcome["outcome"] == "failed":
            test = outcome["test"].rpartition("::")[2]
            if (cause := cause_of(suite.causes, test, outcome["reason"])) is None:
                groups[outcome["reason"]].append(test)
            else:
                by_cause[cause] += 1
    lines = [f"{suite.name} at {address}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())]
    lines += [f"{count:4}  {cause}" for cause, count in sorted(by_cause.items(), key=lambda item: -item[1])]
    if by_cause and groups:
        lines.append("without a cause in tests/peers/causes.py:")
    for reason, tests in sorted(groups.items(), key=lambda group: -len(group[1])):
        more = f" and {len(tests) - NAMES_SHOWN} more" if len(tests) > NAMES_SHOWN else ""
        lines.append(f"{len(tests):4}  {reason[:WIDTH]}\n      {', '.join(tests[:NAMES_SHOWN])}{more}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
