"""Run one round: every contender does each measurement in turn."""

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.bench import machine, workload
from tests.bench.contenders import Contender, ContenderEnded, measure_limits
from tests.bench.say import say, waiting
from tests.bench.steps import CASES, StepCase

SINGLES = 3  # single streams are short, so they are measured more than once
PAUSE_S: Final = 1.0
"""The pause before each measurement: threads of the contender before spin on for a while (OpenMP's for 0.2 s), and it
may write what it keeps on disk."""

Record = dict[str, Any]


class Round:
    """The contenders in the order of this round.

    Attributes:
        limits: the machine's limits, measured at the start and again before each step: two processes in a row
            can differ by a quarter in how fast they read memory.
    """

    def __init__(self, number: int, order: Sequence[Contender]) -> None:
        self.limits: list[dict[str, float]] = []
        self._number, self._order = number, order
        self._records: list[Record] = []

    def run(self, what: Sequence[str]) -> list[Record]:
        """Measure the kinds of `what`: "single", "batch", "shared" or "step"."""
        self._limits()
        for turn in range(SINGLES) if "single" in what else ():
            for contender in self._order:
                self._single(contender, self._number * SINGLES + turn)
        for contender in self._order if "batch" in what else ():
            self._batch(contender, "batch", workload.batch_prompts(self._number), workload.NEW_TOKENS)
        for contender in self._order if "shared" in what else ():
            self._batch(contender, "shared", workload.shared_prompts(self._number), workload.SHARED_NEW_TOKENS)
        for contender in self._order if "step" in what else ():
            for case in CASES if contender.ours else ():
                self._step(contender, case)
        return self._records

    def _single(self, contender: Contender, number: int) -> None:
        answer = self._ask(contender, "single", prompt=workload.single_prompt(number), new_tokens=workload.NEW_TOKENS)
        if "ended" not in answer:
            _check(contender, answer["tokens"], 1, workload.NEW_TOKENS)
            answer["ttft_ms"] = 1e3 * answer.pop("ttft_s")
        self._keep(answer)

    def _batch(self, contender: Contender, what: str, prompts: list[list[int]], new_tokens: int) -> None:
        answer = self._ask(contender, what, prompts=prompts, new_tokens=new_tokens)
        if "ended" not in answer:
            _check(contender, answer["tokens"], len(prompts), new_tokens)
            answer[f"{what}_tps"] = len(prompts) * new_tokens / answer.pop("wall_s")
        self._keep(answer)

    def _limits(self) -> None:
        with waiting("the machine's limits"):
            self.limits.append(measure_limits())

    def _step(self, contender: Contender, case: StepCase) -> None:
        self._limits()
        shape = {"prefill_tokens": case.prefill_tokens, "decode_rows": case.decode_rows, "context": case.context}
        answer = self._ask(contender, "step", **shape)
        if step_s := answer.pop("step_s"):
            self._keep(answer | {case.name: step_s})

    def _ask(self, contender: Contender, what: str, **values: object) -> Record:
        """Return a measurement, or the reason for the end of a peer, which has no speed then."""
        time.sleep(PAUSE_S)
        others = machine.Others(one.pid for one in self._order)
        answer: Record = {"ended": contender.ended}
        if not contender.ended:
            with waiting(f"{contender.name}: {what}"):
                try:
                    answer = contender.ask(what, **values)
                except ContenderEnded as error:
                    if contender.ours:
                        raise
                    say(str(error))
                    answer = {"ended": error.reason}
        head = {"round": self._number, "contender": contender.name, "what": what, "others": round(others.cores(), 3)}
        return head | answer

    def _keep(self, record: Record) -> None:
        numbers = {key: value for key, value in record.items() if isinstance(value, float) and key != "others"}
        figures = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
        say(f"  {figures}")
        self._records.append(record)


def _check(contender: Contender, tokens: Sequence[Sequence[int]], rows: int, new_tokens: int) -> None:
    lengths = [len(row) for row in tokens]
    if lengths != [new_tokens] * rows:
        raise SystemExit(f"{contender.name}: expected {rows} rows of {new_tokens} tokens, got {lengths}")
