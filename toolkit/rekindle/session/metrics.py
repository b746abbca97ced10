"""Metrics of a session in Prometheus text format.

The format has three lines of text per number, so the module uses no library: metrics work without an extra, and nothing
is registered globally.
"""

from collections.abc import Iterator, Mapping, Sequence

from rekindle.client.latencies import Histogram, Latencies
from rekindle.core.scheduler.stats import SchedulerStats, Stats

_GAUGES: Mapping[str, str] = {
    "waiting": "Requests in the waiting queue.",
    "running": "Requests with a slot.",
    "pages": "Pages in the pool.",
    "free_pages": "Pages available to a request, including evictable pages.",
    "cached_pages": "Pages with a cached prefix.",
    "evictable_pages": "Cached pages not in use by any request.",
    "host_pages": "Pages with a copy in host memory.",
    "disk_pages": "Pages with a copy on disk.",
    "host_states": "States of a model's layers with a copy in host memory.",
    "disk_states": "States of a model's layers with a copy on disk.",
}
"""Gauges of the scheduler: help text by attribute of `SchedulerStats`."""
_COUNTERS: Mapping[str, str] = {
    "ended": "Requests that ended, for any reason.",
    "ticks": "Plans made.",
    "prompt_tokens": "Tokens in the prompts of started requests.",
    "device_hit_tokens": "Prompt tokens found in the prefix cache on the device.",
    "host_hit_tokens": "Prompt tokens found in the prefix cache in host memory.",
    "disk_hit_tokens": "Prompt tokens found in the prefix cache on disk.",
    "computed_tokens": "Prompt tokens computed.",
    "recomputed_tokens": "Tokens computed again for requests after a preemption.",
    "generated_tokens": "Tokens given to requests.",
    "forced_tokens": "Generated tokens forced by a constraint.",
    "stateless_tokens": "Tokens found with their pages, and computed again without a state after them.",
    "preemptions": "Times a request gave its pages back, to start again later.",
    "moved_pages": "Prompt pages received from the lane with the computed prompt.",
    "device_losses": "Losses of all pages on the device through a damaged program.",
}
"""Counters of the scheduler: help text by attribute of `SchedulerStats`."""
_HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "queued": ("queue_seconds", "Seconds until a request left the waiting queue."),
    "first_token": ("time_to_first_token_seconds", "Seconds until the first token of a request."),
    "between_tokens": ("inter_token_seconds", "Seconds between two tokens of a request."),
    "total": ("request_seconds", "Seconds until the end of a request."),
}
"""Histograms: (name, help text) by attribute of `Latencies`."""


def metrics_text(stats: Stats, latencies: Latencies) -> str:
    """Return all metrics in Prometheus text format, each with its help and type lines."""
    return "".join(f"{line}\n" for line in _lines(stats, latencies))


def _lines(stats: Stats, latencies: Latencies) -> Iterator[str]:
    for name, text in _GAUGES.items():
        yield from _number(name, "gauge", text, getattr(stats.scheduler, name))
    yield from _number("programs", "gauge", "Compiled programs in memory.", stats.programs)
    for name, text in _COUNTERS.items():
        yield from _number(f"{name}_total", "counter", text, getattr(stats.scheduler, name))
    if len(stats.lanes) > 1:
        yield from _of_lanes(stats.lanes)
    yield from _number("program_loads_total", "counter", "Programs loaded from the store.", stats.loads)
    yield from _number("compilations_total", "counter", "Programs compiled.", stats.compilations)
    yield from _head("requests_total", "counter", "Requests that ended, by their finish reason.")
    for reason, count in sorted(latencies.ended.copy().items()):
        yield f'rekindle_requests_total{{finish_reason="{reason}"}} {count}'
    for attribute, (name, text) in _HISTOGRAMS.items():
        yield from _histogram(name, text, getattr(latencies, attribute))


def _of_lanes(lanes: Sequence[SchedulerStats]) -> Iterator[str]:
    """Yield the metrics of each lane; the prefix "lane_" distinguishes them from the sums over lanes."""
    for kind, helps in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, text in helps.items():
            of_lane = f"lane_{name}" if kind == "gauge" else f"lane_{name}_total"
            yield from _head(of_lane, kind, f"Per lane: {text[0].lower()}{text[1:]}")
            for number, lane in enumerate(lanes):
                yield f'rekindle_{of_lane}{{lane="{number}"}} {getattr(lane, name)}'


def _number(name: str, kind: str, text: str, value: int) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"rekindle_{name} {value}"


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield from _head(name, "histogram", text)
    count = 0
    for bound, count in histogram.up_to:
        yield f'rekindle_{name}_bucket{{le="{"+Inf" if bound == float("inf") else bound}"}} {count}'
    yield f"rekindle_{name}_sum {histogram.sum}"
    yield f"rekindle_{name}_count {count}"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP rekindle_{name} {text}", f"# TYPE rekindle_{name} {kind}"
