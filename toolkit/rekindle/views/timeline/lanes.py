"""The timelines of the lanes of an engine, each with ticks of its own."""

from collections.abc import Iterator, Sequence

from rekindle.views.records import Over, TraceRecord
from rekindle.views.timeline.requests import Timeline


def timelines(records: Sequence[TraceRecord]) -> list[tuple[str, Timeline]]:
    """Return the timeline of each lane after the name of that; one without a name where there is one lane.

    A request that ended before it had a lane is on the first timeline.
    """
    lanes = sorted({record.lane for record in records if record.lane is not None})
    if not lanes:
        return [("", Timeline(records))]
    lane_of = {request: record.lane for record in records if record.lane is not None for request in record.requests}
    return [(f"lane {lane}", Timeline(_of_lane(records, lane, lane_of, lanes[0]))) for lane in lanes]


def _of_lane(records: Sequence[TraceRecord], lane: int, lane_of: dict[int, int], first: int) -> Iterator[TraceRecord]:
    """Yield the records of a lane, and what those of shared actors tell of its requests."""
    for record in records:
        if record.lane == lane:
            yield record
        elif record.lane is None and record.facts:
            # Those of shared actors tell of ends alone.
            facts = [each for each in record.facts if isinstance(each, Over)]
            yield record._replace(facts=tuple(each for each in facts if lane_of.get(each.request, first) == lane))
