"""Bare steps of our own, without the engine around them: what the limits of the machine are compared with."""

from dataclasses import dataclass

from tests.bench import costs


@dataclass(frozen=True)
class StepCase:
    """One step to time."""

    name: str
    prefill_tokens: int
    decode_rows: int
    context: int

    def least_s(self, dtype: str, limits: dict[str, float]) -> float:
        """What the machine needs at least: one row is bound by reading, more rows by computing."""
        if not self.prefill_tokens and self.decode_rows == 1:
            return costs.weight_bytes(dtype) / limits["bandwidth"]
        flops = self.decode_rows * costs.decode_flops(self.context)
        if self.prefill_tokens:
            flops += costs.prefill_flops(self.prefill_tokens)
        return flops / limits[dtype]


CASES = (
    StepCase("1 row at context 200 / reading the weights", 0, 1, 200),
    StepCase("32 rows at context 200 / their operations", 0, 32, 200),
    StepCase("prefill of 512 / its operations", 512, 0, 0),
)


def step_seconds(dtype: str, prefill_tokens: int, decode_rows: int, context: int, repeats: int = 20) -> list[float]:
    """Seconds of each of `repeats` dispatches of one compiled step, from the call until its outputs are there.

    The first dispatches (compiling, first touch of the pages) are not among them.
    """
    return []  # not wired to the step yet: the report leaves these lines out
