"""Compare the server with its session, and with llama.cpp's and vLLM's servers: `make bench-server`.

So many streams at a time ask for prompts of 128 tokens and 64 new tokens each, until all requests have ended. `vllm
bench serve` sends the load to each server, from a process of its own on the same cores. The row "session" is the same
load in the process of Rekindle's session, without HTTP. All take turns, in another order each round.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import machine, peer_servers
from tests.bench.contenders import Contender
from tests.bench.peers import Command, environment
from tests.bench.say import say, waiting
from tests.bench.workload import MODEL

PROMPT_TOKENS, NEW_TOKENS = 128, 64
REQUESTS = {1: 4, 4: 12, 16: 32, 32: 64}
"""The number of requests of a load, by its streams at a time."""
LEAST = 0.8
"""The least part of the expected tokens. llama.cpp ends at tokens that it does not count as the ends to ignore, and
sometimes closes a connection during the next request."""
SESSION, OURS = "session", "rekindle"
MEASURES = {"tps": "tok/s", "ttft_ms": "first token, ms", "itl_ms": "between tokens, ms"}

Figures = dict[str, float]
Load = Callable[[dict[str, Any]], Figures]
Record = tuple[str, int, Figures]
"""The contender, the number of streams at a time, and the figures."""


@dataclass(frozen=True)
class Served:
    """A contender.

    Attributes:
        run: puts a load on it, and returns the figures.
        pids: of its processes, as far as they are known.
    """

    name: str
    run: Load
    pids: tuple[int, ...]


def main() -> None:
    """Run the bench as the command line asks."""
    args = _arguments()
    about = machine.describe()
    client: Set[int] = set()
    if args.apart:
        own = os.sched_getaffinity(0)
        client = {max(own)}
        os.sched_setaffinity(0, own - client)  # for all that is started from here
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    records: list[Record] = []
    with ExitStack() as stack:
        contenders = _started(stack, args.dtype, args.peers, client)
        for round_ in range(1 + args.rounds):
            machine.wait_quiet([pid for each in contenders for pid in each.pids], args.quiet_wait if round_ else 0)
            turn = round_ % len(contenders)
            measured = _round(contenders[turn:] + contenders[:turn], round_, args.streams)
            records += measured if round_ else []
    print("\n" + _table(records, [each.name for each in contenders], args.streams))
    if args.out:
        args.out.write_text(json.dumps({"machine": about, "dtype": args.dtype, "records": records}) + "\n")
        say(f"wrote {args.out}")


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.served", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--peers", type=words, default=["llamacpp", "vllm"], help="llamacpp, vllm, or '' for none")
    what = f"how many at a time, of {','.join(map(str, REQUESTS))}"
    parser.add_argument("--streams", type=numbers, default=list(REQUESTS), help=what)
    what = "give the load generator a core of its own, and the servers the others (Linux)"
    parser.add_argument("--apart", action="store_true", help=what)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet-wait", type=float, default=120.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--out", type=Path, help="where to write all numbers as JSON")
    return parser.parse_args()


def _started(stack: ExitStack, dtype: str, peers: Sequence[str], client: Set[int]) -> list[Served]:
    """Start the session with its server, the peers' servers, and the load generator, which may have its own cores."""
    load_argv = [str(environment("vllm")), "-m", "tests.bench.load_vllm", str(peer_servers.plain_model())]
    load = stack.enter_context(Contender("load", Command(load_argv, {"HF_HUB_OFFLINE": "1"})))
    if client:
        os.sched_setaffinity(load.pid, client)  # before it has made threads
    ours_argv = [sys.executable, "-m", "tests.bench.ours_served", "--dtype", dtype]
    ours = stack.enter_context(Contender(OURS, Command(ours_argv, {})))
    with waiting("rekindle: loading"):
        load.wait_loaded()
        ours.wait_loaded()

    def within(ask: dict[str, Any]) -> Figures:
        return _with_cpu({"cpu_ms": ours}, lambda: ours.ask("load", **ask))

    def over_http(ask: dict[str, Any]) -> Figures:
        return _with_cpu(
            {"cpu_ms": ours, "client_ms": load}, lambda: load.ask("load", url=ours.about["url"], model=MODEL, **ask)
        )

    contenders = [Served(SESSION, within, (ours.pid, load.pid)), Served(OURS, over_http, ())]
    for peer in peers:
        server = stack.enter_context({"llamacpp": peer_servers.llamacpp, "vllm": peer_servers.vllm}[peer](dtype))

        def on_peer(ask: dict[str, Any], url: str = server.url) -> Figures:
            return load.ask("load", url=url, model=MODEL, **ask)

        contenders.append(Served(peer, on_peer, (server.pid,)))
    return contenders


def _with_cpu(processes: Mapping[str, Contender], run: Callable[[], Figures]) -> Figures:
    """Add the CPU time of each process for each token."""
    before = {name: each.ask("cpu")["cpu_s"] for name, each in processes.items()}
    figures = run()
    took = {name: each.ask("cpu")["cpu_s"] - before[name] for name, each in processes.items()}
    return figures | {name: 1e3 * seconds / figures["tokens"] for name, seconds in took.items()}


def _round(order: Sequence[Served], round_: int, streams: Sequence[int]) -> list[Record]:
    records: list[Record] = []
    for at_a_time in streams:
        for each in order:
            requests = REQUESTS[at_a_time] if round_ else at_a_time  # enough to warm all of them up
            ask = {"streams": at_a_time, "requests": requests, "seed": 100 * round_ + at_a_time}
            figures = each.run(ask | {"prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS})
            expected = requests * NEW_TOKENS
            if not LEAST * expected <= figures["tokens"] <= expected:
                raise SystemExit(f"{each.name}: expected {expected} tokens in all, got {figures['tokens']}")
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            say(f"round {round_}, {at_a_time} streams, {each.name}: {text}")
            records.append((each.name, at_a_time, figures))
    return records


def _table(records: Sequence[Record], names: Sequence[str], streams: Sequence[int]) -> str:
    lines = []
    for at_a_time in streams:
        lines.append(f"{at_a_time} streams: median (lowest to highest)")
        for name in names:
            cells = [f"{title} {_spread(_values(records, name, at_a_time, key))}" for key, title in MEASURES.items()]
            lines.append(f"  {name:10} {'; '.join(cells)}")
        lines += [f"  {line}" for line in _ratios(records, names, at_a_time)]
    return "\n".join(lines)


def _ratios(records: Sequence[Record], names: Sequence[str], at_a_time: int) -> list[str]:
    """Return the throughput of our server by that of each other contender, and the CPU time of tokens."""
    ours, lines = _values(records, OURS, at_a_time, "tps"), []
    for name in names:
        if name != OURS:
            theirs = _values(records, name, at_a_time, "tps")
            rounds = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            # Of the ratios, since the machine's speed moves from round to round.
            lines.append(f"{OURS} / {name}: {_spread(rounds, 2)} of its tok/s")
    within, http, client = (
        statistics.median(_values(records, name, at_a_time, key))
        for name, key in ((SESSION, "cpu_ms"), (OURS, "cpu_ms"), (OURS, "client_ms"))
    )
    costs = f"{http:.2f} ms with HTTP, {within:.2f} without, and {client:.2f} in the load generator's"
    return [*lines, f"CPU time of a token in Rekindle's process: {costs}"]


def _values(records: Sequence[Record], name: str, at_a_time: int, key: str) -> list[float]:
    return [figures[key] for who, streams, figures in records if (who, streams) == (name, at_a_time)]


def _spread(values: Sequence[float], digits: int = 1) -> str:
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


if __name__ == "__main__":
    main()
