"""Metrics of a session in Prometheus text format, registered nowhere."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rekindle.assembly.stats import Stats
from rekindle.client.latencies import Latencies

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
    "drafts": "Drafts verified.",
    "drafted_tokens": "Tokens of verified drafts.",
    "accepted_tokens": "Tokens of verified drafts that were right.",
    "pictures": "Images in the prompts of started requests.",
    "embedded_pictures": "Images embedded by the tower; the others were in the prefix cache or in its buffer.",
    "stateless_tokens": "Tokens found with their pages, and computed again without a state after them.",
    "preemptions": "Times a request gave its pages back, to start again later.",
    "moved_pages": "Prompt pages received from the lane with the computed prompt.",
    "device_losses": "Losses of all pages on the device, through a damaged program or for want of memory.",
}
"""Counters of the scheduler: help text by attribute of `SchedulerStats`."""
_LABELS: Mapping[str, tuple[str, str]] = {
    "accepted_at": ("place", "Tokens of verified drafts that were right, by their place in the draft."),
    "undrafted": ("reason", "Requests whose drafts are ruled out, by the reason."),
}
"""Counters of the scheduler with a label: its name and the help text by attribute of `SchedulerStats`."""
_HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "queued": ("queue_seconds", "Seconds until a request left the waiting queue."),
    "first_token": ("time_to_first_token_seconds", "Seconds until the first token of a request."),
    "between_tokens": ("inter_token_seconds", "Seconds between two tokens of a request."),
    "total": ("request_seconds", "Seconds until the end of a request."),
}
"""Histograms: (name, help text) by attribute of `Latencies`."""


class SessionMetrics(Collector):
    """Collector of the metrics of a session.

    Args:
        stats: its counters.
        latencies: its times, counted on by another thread.
    """

    def __init__(self, stats: Stats, latencies: Latencies):
        self._stats, self._latencies = stats, latencies

    def text(self) -> str:
        """Return the metrics in Prometheus text format, each with its help and type lines."""
        return generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the prefix "lane_" distinguishes the ones of each lane from the sums over several."""
        stats, latencies = self._stats, self._latencies
        yield from self._scheduled(GaugeMetricFamily, _GAUGES)
        yield GaugeMetricFamily("rekindle_programs", "Compiled programs in memory.", stats.programs)
        yield from self._scheduled(CounterMetricFamily, _COUNTERS)
        for attribute, (label, text) in _LABELS.items():
            yield _labelled(attribute, text, label, getattr(stats.scheduler, attribute))
        yield CounterMetricFamily("rekindle_program_loads", "Programs loaded from the store.", stats.loads)
        yield CounterMetricFamily("rekindle_compilations", "Programs compiled.", stats.compilations)
        text = "Requests that ended, by their finish reason."
        yield _labelled("requests", text, "finish_reason", latencies.ended.copy())
        for attribute, (name, text) in _HISTOGRAMS.items():
            histogram = getattr(latencies, attribute)
            buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in histogram.up_to]
            yield HistogramMetricFamily(f"rekindle_{name}", text, buckets, histogram.sum)

    def _scheduled(
        self, family: type[GaugeMetricFamily | CounterMetricFamily], texts: Mapping[str, str]
    ) -> Iterator[Metric]:
        """Yield metrics of the scheduler, and of several lanes."""
        for name, text in texts.items():
            yield family(f"rekindle_{name}", text, getattr(self._stats.scheduler, name))
            if len(self._stats.lanes) > 1:
                by_lane = family(f"rekindle_lane_{name}", f"Per lane: {text[0].lower()}{text[1:]}", labels=["lane"])
                for number, lane in enumerate(self._stats.lanes):
                    by_lane.add_metric([str(number)], getattr(lane, name))
                yield by_lane


def _labelled(name: str, text: str, label: str, counts: Mapping[Any, int]) -> Metric:
    """Return a counter with a value for each label."""
    family = CounterMetricFamily(f"rekindle_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([str(value)], count)
    return family
