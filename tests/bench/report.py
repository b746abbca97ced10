"""Print the records of a bench as tables of medians and ratios."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench import costs
from tests.bench.rounds import Record
from tests.bench.steps import CASES
from tests.bench.workload import (
    BATCH_LENGTHS,
    NEW_TOKENS,
    SHARED_NEW_TOKENS,
    SHARED_PREFIX,
    SHARED_REQUESTS,
    SHARED_REST,
    SINGLE_LENGTH,
)

NOISY_CORES = 0.15

Limits = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """One number of a measurement."""

    key: str
    title: str
    more_is_better: bool
    what: str  # the measurement


METRICS = (
    Metric("ttft_ms", "first token, ms", False, "single"),
    Metric("decode_tps", "single, tok/s", True, "single"),
    Metric("batch_tps", "batch, tok/s", True, "batch"),
    Metric("shared_tps", "shared, tok/s", True, "shared"),
)


def tables(records: Sequence[Record], limits: Sequence[Limits], contenders: Sequence[str]) -> str:
    """Return everything that is printed at the end."""
    parts = [
        _speeds(records, contenders),
        _ratios(records, contenders),
        _against_limits(records, median_limits(limits), contenders),
    ]
    noisy = sum(record["others"] > NOISY_CORES for record in records)
    if noisy:
        parts.append(f"{noisy} of {len(records)} measurements ran while others used more than {NOISY_CORES} cores.")
    return "\n\n".join(part for part in parts if part)


def median_limits(limits: Sequence[Limits]) -> Limits:
    """Return the median of each limit."""
    return {name: statistics.median(one[name] for one in limits) for name in limits[0]}


def _speeds(records: Sequence[Record], contenders: Sequence[str]) -> str:
    reference = next((name for name in contenders if not name.startswith("ours:")), contenders[0])
    rows = [["median (lowest to highest)", *(metric.title for metric in METRICS), f"rows as from {reference}"]]
    for name in contenders:
        cells = [
            _crash(records, name, metric.what) or _spread(_values(records, name, metric.key)) for metric in METRICS
        ]
        rows.append([name, *cells, _agreement(records, name, reference)])
    return _layout(rows)


def _ratios(records: Sequence[Record], contenders: Sequence[str]) -> str:
    """Return the ratios of the speeds of each of ours to each contender after it, by medians and in single rounds."""
    rows = [["times as fast (lowest to highest round)", *(metric.title.split(",")[0] for metric in METRICS)]]
    for place, ours in enumerate(contenders):
        for other in contenders[place + 1 :] if ours.startswith("ours:") else ():
            # Between two of ours the gain of the smaller dtype is asked for, so that one is the numerator.
            above, below = (other, ours) if other.startswith("ours:") else (ours, other)
            rows.append([f"{above} / {below}", *(_ratio(records, above, below, metric) for metric in METRICS)])
    return _layout(rows)


def _ratio(records: Sequence[Record], above: str, below: str, metric: Metric) -> str:
    def times_as_fast(rounds: set[int]) -> float | None:
        a, b = (_values(records, name, metric.key, rounds) for name in (above, below))
        if not a or not b:
            return None
        ratio = statistics.median(a) / statistics.median(b)
        return ratio if metric.more_is_better else 1 / ratio

    rounds = {record["round"] for record in records}
    overall = times_as_fast(rounds)
    if overall is None:
        return "-"
    each = [ratio for round_ in rounds if (ratio := times_as_fast({round_})) is not None]
    return f"{overall:.2f} ({min(each):.2f} to {max(each):.2f})"


def _against_limits(records: Sequence[Record], limits: Limits, contenders: Sequence[str]) -> str:
    """Return the ratios of the times of each of ours to the machine's least times; 1 would be the limit itself."""
    rates = ", ".join(f"{dtype} {limits[dtype] / 1e9:.0f} GFLOP/s" for dtype in costs.BYTES)
    rows = [["times what the machine needs at least", "takes, ms", "least, ms", "ratio"]]
    for name in contenders:
        if name.startswith("ours:") and name.partition(":")[2] in costs.BYTES:
            for title, taken_s, least_s in _comparisons(records, name, name.partition(":")[2], limits):
                rows.append(
                    [f"{name} {title}", f"{1e3 * taken_s:.1f}", f"{1e3 * least_s:.1f}", f"{taken_s / least_s:.2f}"]
                )
    head = f"limits: memory {limits['bandwidth'] / 1e9:.1f} GB/s, 2048-cubed product {rates}"
    return f"{head}\n{_layout(rows)}".strip()


def _comparisons(
    records: Sequence[Record], name: str, dtype: str, limits: Limits
) -> Iterator[tuple[str, float, float]]:
    """Yield the title of each measurement, its seconds, and its least possible seconds."""
    if values := _values(records, name, "ttft_ms"):
        least_s = costs.prefill_flops(SINGLE_LENGTH) / limits[dtype]
        yield f"first token / operations of {SINGLE_LENGTH}", statistics.median(values) / 1e3, least_s
    if values := _values(records, name, "decode_tps"):
        read_bytes = costs.weight_bytes(dtype) + costs.kv_bytes(dtype, SINGLE_LENGTH + NEW_TOKENS // 2)
        yield "single, each token / reading", 1 / statistics.median(values), read_bytes / limits["bandwidth"]
    if values := _values(records, name, "batch_tps"):
        least_s = costs.batch_flops(BATCH_LENGTHS, NEW_TOKENS) / limits[dtype]
        yield "batch / operations", len(BATCH_LENGTHS) * NEW_TOKENS / statistics.median(values), least_s
    if values := _values(records, name, "shared_tps"):
        flops = costs.shared_flops(SHARED_REQUESTS, SHARED_PREFIX, SHARED_REST, SHARED_NEW_TOKENS)
        taken_s = SHARED_REQUESTS * SHARED_NEW_TOKENS / statistics.median(values)
        yield "shared / operations, the prefix once", taken_s, flops / limits[dtype]
    for case in CASES:
        if values := _values(records, name, case.name):
            yield f"step: {case.name}", statistics.median(values), case.least_s(dtype, limits)


def _agreement(records: Sequence[Record], name: str, reference: str) -> str:
    """Return the number of rows of all batches with the same tokens as the reference; near ties may differ."""
    batches = [
        {
            (record["what"], record["round"]): record["tokens"]
            for record in records
            if "tokens" in record and record["what"] in ("batch", "shared") and record["contender"] == who
        }
        for who in (name, reference)
    ]
    pairs = [
        pair for key in batches[0].keys() & batches[1].keys() for pair in zip(*(b[key] for b in batches), strict=True)
    ]
    return f"{sum(mine == theirs for mine, theirs in pairs)} of {len(pairs)}" if pairs else "-"


def _crash(records: Sequence[Record], name: str, what: str) -> str:
    """Return the crash of a contender in a measurement, which then has no speed; "" without one."""
    reasons = [one["ended"] for one in records if one["contender"] == name and one["what"] == what and "ended" in one]
    return f"crashed: {reasons[0]}" if reasons else ""


def _values(records: Sequence[Record], name: str, key: str, rounds: set[int] | None = None) -> list[float]:
    return [
        record[key]
        for record in records
        if record["contender"] == name
        and key in record
        and (rounds is None or record["round"] in rounds)
        and not _crash(records, name, record["what"])
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "-"


def _layout(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) == 1:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
