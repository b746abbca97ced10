"""The words of a timeline, for people who have not seen one before."""

from collections.abc import Sequence

from rekindle.core.markup import counted, seconds
from rekindle.views.timeline.courses import Course, Kind, Tick, Timeline
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
    return f"{counted(len(view.courses), 'request')} over {counted(len(ticks), 'tick')}{took}"


def title(view: View) -> str:
    """Return the headline and how many ticks a column is."""
    return f"{headline(view)}; a column is {f'{view.share} ticks' if view.share > 1 else 'a tick'}"


def named(course: Course) -> str:
    """Return the name of a row, with the group of devices where there are several."""
    group = "" if course.group is None else f", group {course.group}"
    return f"{'prefix' if course.hold else 'request'} {course.request}{group}"


def summary(course: Course) -> str:
    """Return the prompt and new tokens of a request and how it ended, as they stand right of its row."""
    how = course.how or "goes on"
    if course.how == "rejected" and not course.cells:
        return how
    prompt = "?" if course.prompt is None else f"{course.prompt}"
    cached = f" ({course.cached} cached)" if course.cached else ""
    least = "" if course.whole else "≥"
    return f"{prompt}{cached}{'' if course.hold else f' + {least}{course.generated}'}, {how}"


def facts(course: Course, timeline: Timeline) -> str:
    """Return all that is known of a request, on several lines."""
    why = f": {course.why}" if course.why else ""
    lines = [f"{named(course)}, {course.how or 'goes on'}{why}"]
    if course.prompt is not None:
        lines.append(f"prompt of {counted(course.prompt, 'token')}, {course.cached or 0:,} of them cached")
    if not course.hold:
        least = "" if course.whole else "at least "
        lines.append(f"{least}{counted(course.generated, 'token')} generated")
    joined = course.at.get("joined")
    if joined is not None:
        planned = next((timeline.ticks[tick].planned for tick in course.cells), None)
        moments = {
            "queued for": planned,
            "first token after": course.at.get("token"),
            "ended after": course.at.get("ended"),
        }
        lines += [f"{what} {seconds(at - joined)}" for what, at in moments.items() if at is not None]
    if course.lost:
        again = sum(cell.tokens for tick, cell in course.cells.items() if cell.prefill and _again(course, tick))
        lines.append(f"lost its pages {counted(len(course.lost), 'time')}, {counted(again, 'token')} computed again")
    return "\n".join(lines)


def span_facts(course: Course, span: TickSpan) -> str:
    """Return what a span of a row is."""
    if span.first == span.last:
        where = f"tick {span.first}"
    else:
        where = f"{counted(span.ticks, 'tick')} from {span.first} to {span.last}"
    said = f"{named(course)}, {MEANT[span.kind].partition(':')[0]}, {where}"
    if not span.tokens:
        return said
    said += f": {counted(span.tokens, 'token')}"
    if span.kind == "prefill" and span.ticks == 1 and span.start is not None:
        said += f", positions {span.start} to {span.start + span.tokens - 1}"
    return said + (", computed again" if span.kind == "prefill" and _again(course, span.first) else "")


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
    parts += [counted(count, one, several) for one, several, count in counts if count]
    return ", ".join(parts)


def _again(course: Course, tick: int) -> bool:
    """Return whether a request had lost its pages before this tick computed something for it."""
    return bool(course.lost) and course.lost[0] <= tick
