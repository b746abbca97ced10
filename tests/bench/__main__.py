"""Compare Rekindle's speed with its peers' and with the machine's limits: `make bench`.

Each contender starts and warms up once. Then they take turns, in another order each round, so a slow phase of the
machine slows all contenders.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import machine, workload
from tests.bench.contenders import Contender, ContenderEnded
from tests.bench.peers import PEERS
from tests.bench.report import Limits, median_limits, tables
from tests.bench.rounds import Record, Round
from tests.bench.say import say, waiting

WHAT = ["single", "batch", "shared", "step"]
PEERS_HELP = f"{', '.join(PEERS)}, in float32 or as in llamacpp:bfloat16, llamacpp:packed; '' for none"


def main() -> None:
    """Run the bench as the command line asks."""
    args = _arguments()
    names = [f"ours:{dtype}" for dtype in args.ours if dtype] + [_with_dtype(peer) for peer in args.peers if peer]
    about = machine.describe()
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    records: list[Record] = []
    limits: list[Limits] = []
    with ExitStack() as stack:
        contenders = [_start(stack, name, args.what) for name in names]
        for round_ in range(1, args.rounds + 1):
            machine.wait_quiet([contender.pid for contender in contenders], args.quiet_wait)
            say(f"round {round_} of {args.rounds}")
            turn = round_ % len(contenders)
            one = Round(round_, contenders[turn:] + contenders[:turn])
            records += one.run(args.what)
            limits += one.limits
        versions = {contender.name: contender.about for contender in contenders}
    print("\n" + tables(records, limits, names))
    if args.out:
        report = {"machine": about, "contenders": versions, "limits": median_limits(limits), "records": records}
        args.out.write_text(json.dumps(report) + "\n")
        say(f"wrote {args.out}")


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--ours",
        type=words,
        default=["float32", "bfloat16"],
        help="our dtypes, packed for the file's blocks, or '' for none",
    )
    parser.add_argument("--peers", type=words, default=["hf"], help=PEERS_HELP)
    parser.add_argument("--what", type=words, default=WHAT, help=f"what to measure, of {','.join(WHAT)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet-wait", type=float, default=120.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--out", type=Path, help="where to write all numbers as JSON")
    return parser.parse_args()


def _with_dtype(peer: str) -> str:
    return peer if ":" in peer else f"{peer}:float32"


def _start(stack: ExitStack, name: str, what: Sequence[str]) -> Contender:
    """Start a contender and warm it up with the measured shapes. A peer that crashes stays, without a speed."""
    contender = stack.enter_context(Contender.start(name))
    try:
        _warm_up(contender, what)
    except ContenderEnded as error:
        if contender.ours:
            raise
        say(str(error))
    return contender


def _warm_up(contender: Contender, what: Sequence[str]) -> None:
    with waiting(f"{contender.name}: loading"):
        contender.wait_loaded()
    with waiting(f"{contender.name}: warming up"):
        if "single" in what:
            contender.ask("single", prompt=workload.single_prompt(0), new_tokens=workload.NEW_TOKENS)
        if "batch" in what:
            contender.ask("batch", prompts=workload.batch_prompts(0), new_tokens=workload.NEW_TOKENS)
        if "shared" in what:
            contender.ask("shared", prompts=workload.shared_prompts(0), new_tokens=workload.SHARED_NEW_TOKENS)


if __name__ == "__main__":
    main()
