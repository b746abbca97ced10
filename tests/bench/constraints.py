"""Measure constrained batches of the default model against free ones, and the cost of one constrained request.

The kinds take turns in one session, each with its own prompts in each round, so no prefix is cached.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import rekindle
from rekindle.core.messages import Advance, Settled

ROWS, TOKENS = 32, 64
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 10, "maxLength": 30},
        "born": {"type": "integer", "minimum": 1900, "maximum": 2020},
        "occupation": {"type": "string", "minLength": 10, "maxLength": 30},
        "languages": {"type": "array", "items": {"enum": ["Greek", "Hindi", "Latin"]}, "minItems": 2, "maxItems": 4},
        "about": {"type": "string", "minLength": 100, "maxLength": 200},
    },
    "required": ["name", "born", "occupation", "languages", "about"],
    "additionalProperties": False,
}
FREE: dict[str, Any] = {"ignore_eos": True}
TEXT: dict[str, Any] = {"regex": r"[^\x00-\x1f]{400,}"}
JSON: dict[str, Any] = {"json_schema": PERSON}
KINDS: dict[str, Sequence[dict[str, Any]]] = {
    "free": [FREE] * ROWS,
    "any text by a regex": [TEXT] * ROWS,
    "JSON of a schema": [JSON] * ROWS,
    "31 free, 1 constrained": [FREE] * (ROWS - 1) + [TEXT],
    "1 free": [FREE],
    "1 JSON of a schema": [JSON],
}
MASKS = {"any text": TEXT, "JSON of a schema": JSON, "a long bounded string": {"regex": "[a-zA-Z ,.]{300,400}"}}
BASES = {name: "1 free" if name.startswith("1 ") else "free" for name in KINDS}


@dataclass(frozen=True)
class Speeds:
    """Tokens per second of a kind in one round: of all requests, and of the free ones."""

    all: float
    free: float


def once(session: rekindle.Session, requests: Sequence[dict[str, Any]], turn: int) -> Speeds:
    """Generate one batch."""
    began = perf_counter()
    handles = [
        session.submit(
            f"Notes of day {turn}, page {page}:", **{"max_tokens": TOKENS, "temperature": 1.0, "seed": page, **each}
        )
        for page, each in enumerate(requests)
    ]
    answers = [handle.result() for handle in handles]
    seconds = perf_counter() - began
    counts = [len(answer.token_ids) for answer in answers]
    free = sum(count for count, each in zip(counts, requests, strict=True) if each is FREE)
    return Speeds(sum(counts) / seconds, free / seconds)


def held_up(session: rekindle.Session, each: dict[str, Any], turn: int) -> float:
    """Return the median wait of a free request beside 31 constrained ones, as a share of a tick.

    The wait includes the time in the grammars' thread, and the way to it and back.
    """
    records: list[Any] = []
    with session.watch(records.append):
        once(session, [each] * (ROWS - 1) + [{**FREE, "max_tokens": 2 * TOKENS}], turn)
    free = [one for one in records if isinstance(one.message, Advance) and one.message.tokens and one.message.free]
    ticks = [one.began for one in records if isinstance(one.message, Settled)]
    return float(median(one.ended - one.began for one in free) / median(b - a for a, b in pairwise(ticks)))


def measure(dtype: Any, rounds: int) -> dict[str, list[Speeds]]:
    """Return the speeds of each kind in each round."""
    speeds: dict[str, list[Speeds]] = {kind: [] for kind in KINDS}
    with rekindle.open_sync("smollm2-135m-instruct", dtype=dtype, max_running=ROWS, disk_cache_bytes=0) as session:
        session.precompiled_sync()
        for turn in range(rounds + 1):
            for place, (kind, requests) in enumerate(KINDS.items()):
                one = once(session, requests, turn * len(KINDS) + place)
                if turn:
                    speeds[kind].append(one)
        for place, (name, each) in enumerate(MASKS.items()):
            shares = [held_up(session, each, 1000 + 10 * turn + place) for turn in range(rounds)]
            print(f"masks of {name}: a free request beside 31 waits {median(shares):.3f} of a tick")
    return speeds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    results = measure(arguments.dtype, arguments.rounds)
    for kind, rounds in results.items():
        base = results[BASES[kind]]
        share = median(mine.all / other.all for mine, other in zip(rounds, base, strict=True))
        print(f"{kind:25s} {median(one.all for one in rounds):7.1f} tokens/s, {share:.3f} of {BASES[kind]}")
