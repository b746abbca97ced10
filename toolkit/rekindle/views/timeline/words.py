"""The words of a timeline, for people who have not seen one before."""

from collections.abc import Sequence

from rekindle.core.markup import quantity, seconds
from rekindle.views.timeline.requests import Kind, RequestTimeline, Tick, Timeline
from rekindle.views.timeline.view import TickSpan, View, mean_seconds

LETTERS: dict[Kind, str] = {
    "prefill": "P",
    "preempted": "x",
    "decode": "d",
    "surplus": "s",
    "idle": "-",
    "queued": ".",
}
"""The letter of each kind. If several ticks share one, it is the first of these that one of them has."""
MEANT: dict[Kind, str] = {
    "prefill": "prefill: known tokens",
    "decode": "decode: new tokens",
    "surplus": "surplus: a token past the end",
    "queued": "queued",
    "idle": "runs, not in this tick",
    "preempted": "preempted, waits again",
}
SUMMARY_HEAD = "prompt + new tokens, end"
"""The heading of the column of summaries."""


def headline(view: View) -> str:
    """Return how many requests and ticks are drawn, and how long those took."""
    ticks = [view.timeline.ticks[tick] for tick in view.ticks]
    ends = [tick.ended for tick in ticks if tick.ended is not None]
    took = f" in {seconds(ends[-1] - ticks[0].planned)}" if ends else ""
    return f"{quantity(len(view.request_timelines), 'request')} over {quantity(len(ticks), 'tick')}{took}"


def title(view: View) -> str:
    """Return the headline and how many ticks a column is."""
    return f"{headline(view)}; a column is {f'{view.share} ticks' if view.share > 1 else 'a tick'}"


def named(request_timeline: RequestTimeline) -> str:
    """Return the name of a row, with the group of devices where there are several."""
    group = "" if request_timeline.group is None else f", group {request_timeline.group}"
    return f"{'prefix' if request_timeline.hold else 'request'} {request_timeline.request}{group}"


def summary(request_timeline: RequestTimeline) -> str:
    """Return the prompt and new tokens of a request and how it ended, as they stand right of its row."""
    how = request_timeline.how or "goes on"
    if request_timeline.how == "rejected" and not request_timeline.cells:
        return how
    prompt = "?" if request_timeline.prompt is None else f"{request_timeline.prompt}"
    cached = f" ({request_timeline.cached} cached)" if request_timeline.cached else ""
    least = "" if request_timeline.whole else "≥"
    return f"{prompt}{cached}{'' if request_timeline.hold else f' + {least}{request_timeline.generated}'}, {how}"


def facts(request_timeline: RequestTimeline, timeline: Timeline) -> str:
    """Return all that is known of a request, on several lines."""
    why = f": {request_timeline.why}" if request_timeline.why else ""
    lines = [f"{named(request_timeline)}, {request_timeline.how or 'goes on'}{why}"]
    if request_timeline.prompt is not None:
        lines.append(
            f"prompt of {quantity(request_timeline.prompt, 'token')}, {request_timeline.cached or 0:,} of them cached"
        )
    if not request_timeline.hold:
        least = "" if request_timeline.whole else "at least "
        lines.append(f"{least}{quantity(request_timeline.generated, 'token')} generated")
    joined = request_timeline.at.get("joined")
    if joined is not None:
        planned = next((timeline.ticks[tick].planned for tick in request_timeline.cells), None)
        moments = {
            "queued for": planned,
            "first token after": request_timeline.at.get("token"),
            "ended after": request_timeline.at.get("ended"),
        }
        lines += [f"{what} {seconds(at - joined)}" for what, at in moments.items() if at is not None]
    if request_timeline.lost:
        again = sum(
            cell.tokens
            for tick, cell in request_timeline.cells.items()
            if cell.prefill and _again(request_timeline, tick)
        )
        lines.append(
            f"lost its pages {quantity(len(request_timeline.lost), 'time')}, {quantity(again, 'token')} computed again"
        )
    return "\n".join(lines)


def span_facts(request_timeline: RequestTimeline, span: TickSpan) -> str:
    """Return what a span of a row is."""
    if span.first == span.last:
        where = f"tick {span.first}"
    else:
        where = f"{quantity(span.ticks, 'tick')} from {span.first} to {span.last}"
    said = f"{named(request_timeline)}, {MEANT[span.kind].partition(':')[0]}, {where}"
    if not span.tokens:
        return said
    said += f": {quantity(span.tokens, 'token')}"
    if span.kind == "prefill" and span.ticks == 1 and span.start is not None:
        said += f", positions {span.start} to {span.start + span.tokens - 1}"
    return said + (", computed again" if span.kind == "prefill" and _again(request_timeline, span.first) else "")


def tick_facts(ticks: Sequence[Tick]) -> str:
    """Return what the ticks of a column did."""
    first, last = ticks[0].number, ticks[-1].number
    parts = [f"tick {first}" if first == last else f"ticks {first} to {last}"]
    took = mean_seconds(ticks)
    if took is not None:
        parts.append(f"{seconds(took)}{'' if first == last else ' each'}")
    counts = (
        ("token of prefill", "tokens of prefill", sum(part.tokens for tick in ticks for part in tick.chunks)),
        ("token of decode", "tokens of decode", sum(len(tick.rows) for tick in ticks)),
        ("page copied in", "pages copied in", sum(tick.onloaded for tick in ticks)),
    )
    parts += [quantity(count, one, several) for one, several, count in counts if count]
    return ", ".join(parts)


def _again(request_timeline: RequestTimeline, tick: int) -> bool:
    """Return whether a request had lost its pages before this tick computed something for it."""
    return bool(request_timeline.lost) and request_timeline.lost[0] <= tick
