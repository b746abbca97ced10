"""Measure drafts by lookup, as ratios to the same session without drafts, in rounds in turns.

Each task runs alone; the chat runs as many requests at once, too. Every answer is compared: drafts change no token.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final, Literal

import rekindle
from tests.bench.machine import describe
from tests.bench.workload import MODEL

TEXT: Final = (
    "The lighthouse keeper, Tomas Eriksen, walked down the long spiral staircase every morning at six. He carried a "
    "lantern, a notebook, and a small brass key on a chain. The sea was calm, and the gulls were asleep on the rocks "
    "below. In his notebook he wrote the height of the tide, the colour of the sky, and the names of the ships that "
    "passed. Then he climbed back up, and made his coffee."
)
CODE: Final = (
    "def price(items, tax):\n    total = 0\n    for item in items:\n        total += item.price * item.count\n"
    "    if tax:\n        total = total * (1 + tax)\n    print('total is', total)\n    return total\n"
)
PEOPLE: Final = (
    "Anna Schmidt is 31 and lives in Berlin. Bob Jones, 45, lives in London. Carla Rossi is 27 and lives in Rome. "
    "David Meyer, 52, lives in Vienna. Eva Novak is 38 and lives in Prague."
)
PERSON: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
TASKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "quoting": (f"Repeat this text exactly, word for word:\n\n{TEXT}", {}),
    "JSON": (f"List the people as JSON with name, age and city: {PEOPLE}", {}),
    "JSON by schema": (
        f"List the people as JSON with name, age and city: {PEOPLE}",
        {"json_schema": {"type": "array", "items": PERSON, "minItems": 5, "maxItems": 5}},
    ),
    "code edit": (f"Add a docstring to this function, and write the whole function again:\n\n```python\n{CODE}```", {}),
    "summary": (f"Summarize this text in three sentences:\n\n{TEXT}", {}),
    "chat": ("What should I see in Lisbon in two days?", {}),
}
TOGETHER: Final = (16, 32)
NEW_TOKENS: Final = 160


def ask(session: rekindle.Session, task: str, rows: int, draft: Literal["lookup", False], salt: str) -> Any:
    """Return tokens per second, and the tokens of all answers."""
    prompt, options = TASKS[task]
    prompts: Any = [[{"role": "user", "content": f"{prompt}{' ' * row}"}] for row in range(rows)]
    began = perf_counter()
    answers: Sequence[rekindle.Generation] = session.generate_sync(
        prompts,
        max_tokens=NEW_TOKENS,
        temperature=0,
        repetition_penalty=1.0,
        draft=draft,
        cache_salt=salt,
        progress=False,
        **options,
    )
    if rows == 1:
        (answer,) = answers
        assert answer.timings is not None
        per_token = answer.timings.per_token(len(answer.token_ids))
        return 1 / per_token if per_token else 0.0, [answer.token_ids]
    return sum(len(each.token_ids) for each in answers) / (perf_counter() - began), [each.token_ids for each in answers]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turns (default: 5)")
    parser.add_argument("--model", default=MODEL, help=f"what to open (default: {MODEL})")
    parser.add_argument("--packed", action="store_true", help="keep the blocks of the file, in place of bfloat16")
    args = parser.parse_args()
    print(describe())
    form: Any = {} if args.packed else {"dtype": "bfloat16", "weights": "dequantized"}
    with rekindle.open_sync(args.model, precompile="all", max_context=1024, progress=False, **form) as session:
        for task, rows in [*((task, 1) for task in TASKS), *(("chat", rows) for rows in TOGETHER)]:
            ratios, speeds = [], []
            for number in range(args.rounds):
                before = session.stats.scheduler
                salts = [f"{task} {rows} {number} {side}" for side in ("plain", "drafts")]
                plain, expected = ask(session, task, rows, False, salts[0])
                drafted, tokens = ask(session, task, rows, "lookup", salts[1])
                assert tokens == expected, "a draft changed a token"
                speeds.append(plain)
                ratios.append(drafted / plain)
                after = session.stats.scheduler
            counts = (
                f"{after.accepted_tokens - before.accepted_tokens} of {after.drafted_tokens - before.drafted_tokens}"
            )
            print(
                f"{task:15} {rows:3} at once: {median(speeds):6.1f} tokens/s without, {median(ratios):.2f} times that "
                f"with ({min(ratios):.2f} to {max(ratios):.2f}); {counts} drafted tokens right",
                flush=True,
            )
        assert session.stats.unexpected_compilations == 0
