"""What a timeline says in words, for people who have not seen one before."""

from collections.abc import Sequence

from rekindle.markup import counted, seconds
from rekindle.views.timeline.timeline import Course, Kind, Tick, Timeline
from rekindle.views.timeline.view import Span, View

LETTERS: dict[Kind, str] = {
    "prefill": "P",
    "preempted": "x",
    "decode": "d",
    "surplus": "s",
    "idle": "-",
    "queued": ".",
}
"""Where several ticks share a letter, it is the first of these that one of them has."""
MEANT: dict[Kind, str] = {
    "prefill": "prefill: known tokens",
    "decode": "decode: one more token",
    "surplus": "surplus: a token past the end",
    "queued": "queued",
    "idle": "runs, not in this tick",
    "preempted": "preempted, waits again",
}


def headline(view: View) -> str:
    """What is drawn."""
    ticks = [view.timeline.ticks[tick] for tick in view.ticks]
    ends = [tick.ended for tick in ticks if tick.ended is not None]
    took = f" in {seconds(ends[-1] - ticks[0].planned)}" if ends else ""
    return f"{counted(len(view.courses), 'request')} over {counted(len(ticks), 'tick')}{took}"


def scale(view: View) -> str:
    """How wide a column is."""
    return f"a column is {view.share} ticks" if view.share > 1 else "a column is a tick"


def named(course: Course) -> str:
    """What a row is called."""
    return f"{'prefix' if course.hold else 'request'} {course.request}"


def summary(course: Course) -> str:
    """What is said right of a row."""
    how = course.how or "goes on"
    if course.how == "rejected" and not course.cells:
        return how
    prompt = "?" if course.prompt is None else f"{course.prompt}"
    cached = f" ({course.cached} cached)" if course.cached else ""
    least = "" if course.whole else "≥"
    return f"{prompt}{cached}{'' if course.hold else f' + {least}{course.generated}'}, {how}"


def facts(course: Course, timeline: Timeline) -> str:
    """All that is known of a request, on lines."""
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


def span_facts(course: Course, span: Span) -> str:
    """What a part of a row is."""
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
    """What the ticks of a column did."""
    first, last = ticks[0].number, ticks[-1].number
    parts = [f"tick {first}" if first == last else f"ticks {first} to {last}"]
    took = [tick.seconds for tick in ticks if tick.seconds is not None]
    if took:
        parts.append(f"{seconds(sum(took) / len(took))}{'' if first == last else ' each'}")
    counts = {
        "token of prefill": sum(part.tokens for tick in ticks for part in tick.chunks),
        "token of decode": sum(len(tick.rows) for tick in ticks),
        "page copied in": sum(tick.onloaded for tick in ticks),
    }
    for what, count in counts.items():
        noun, rest = what.split(" ", 1)
        parts += [f"{counted(count, noun)} {rest}"] if count else []
    return ", ".join(parts)


def _again(course: Course, tick: int) -> bool:
    """Whether what this tick computed of it follows a loss of its pages."""
    return bool(course.lost) and course.lost[0] <= tick
