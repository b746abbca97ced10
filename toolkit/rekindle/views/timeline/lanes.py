"""The timelines of an engine's lanes."""

from collections.abc import Iterator, Sequence

from rekindle.views.records import EndRecord, TraceRecord
from rekindle.views.timeline.requests import Timeline


def timelines(records: Sequence[TraceRecord]) -> list[tuple[str, Timeline]]:
    """Return the name and the timeline of each lane; the name is empty with a single lane.

    A request without any lane, such as one rejected at once, is on the first timeline.
    """
    lanes = sorted({record.lane for record in records if record.lane is not None})
    if not lanes:
        return [("", Timeline(records))]
    lane_of = {request: record.lane for record in records if record.lane is not None for request in record.requests}
    return [(f"lane {lane}", Timeline(_of_lane(records, lane, lane_of, lanes[0]))) for lane in lanes]


def _of_lane(records: Sequence[TraceRecord], lane: int, lane_of: dict[int, int], first: int) -> Iterator[TraceRecord]:
    """Yield the records of a lane, and the ends of its requests recorded by shared actors."""
    for record in records:
        if record.lane == lane:
            yield record
        elif record.lane is None and record.facts:
            ends = [each for each in record.facts if isinstance(each, EndRecord)]
            yield record._replace(facts=tuple(end for end in ends if lane_of.get(end.request, first) == lane))
