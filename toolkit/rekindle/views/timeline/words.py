"""Labels and tooltips of timelines, for readers without prior knowledge."""

from collections.abc import Sequence

from rekindle.core.words import quantity, seconds
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
"""The letter of each kind. A column of several ticks has the letter of its first kind in this order."""
MEANINGS: dict[Kind, str] = {
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
    """Return the numbers of requests and ticks, and the duration of the ticks, as text."""
    ticks = [view.timeline.ticks[tick] for tick in view.ticks]
    ends = [tick.ended for tick in ticks if tick.ended is not None]
    duration = f" in {seconds(ends[-1] - ticks[0].planned_at)}" if ends else ""
    return f"{quantity(len(view.rows), 'request')} over {quantity(len(ticks), 'tick')}{duration}"


def title(view: View) -> str:
    """Return the headline and the number of ticks in a column, if there is one."""
    if not view.rows:
        return headline(view)
    each = f"{view.ticks_per_column} ticks" if view.ticks_per_column > 1 else "a tick"
    return f"{headline(view)}; a column is {each}"


def row_name(request: RequestTimeline) -> str:
    """Return the name of a row, with the group of devices if there are several."""
    group = "" if request.group is None else f", group {request.group}"
    return f"{'prefix' if request.hold else 'request'} {request.id}{group}"


def summary(request: RequestTimeline) -> str:
    """Return the summary at the right of a row: prompt and new tokens, and the end reason."""
    end = request.end_reason or "unfinished"
    if request.end_reason == "rejected" and not request.cells:
        return end
    prompt = "?" if request.prompt is None else f"{request.prompt}"
    cached = f" ({request.cached} cached)" if request.cached else ""
    bound = "" if request.is_complete else "≥"
    return f"{prompt}{cached}{'' if request.hold else f' + {bound}{request.generated}'}, {end}"


def facts(request: RequestTimeline, timeline: Timeline) -> str:
    """Return the tooltip of a request, on several lines."""
    error = f": {request.error}" if request.error else ""
    lines = [f"{row_name(request)}, {request.end_reason or 'unfinished'}{error}"]
    if request.prompt is not None:
        lines.append(f"prompt of {quantity(request.prompt, 'token')}, {request.cached or 0:,} of them cached")
    if not request.hold:
        bound = "" if request.is_complete else "at least "
        lines.append(f"{bound}{quantity(request.generated, 'token')} generated")
    joined = request.at.get("joined")
    if joined is not None:
        planned = next((timeline.ticks[tick].planned_at for tick in request.cells), None)
        moments = {
            "queued for": planned,
            "first token after": request.at.get("token"),
            "ended after": request.at.get("ended"),
        }
        lines += [f"{label} {seconds(at - joined)}" for label, at in moments.items() if at is not None]
    if request.preemptions:
        prefills = (cell for tick, cell in request.cells.items() if cell.prefill and _is_recomputed(request, tick))
        recomputed = quantity(sum(cell.tokens for cell in prefills), "token")
        lines.append(f"lost its pages {quantity(len(request.preemptions), 'time')}, {recomputed} computed again")
    return "\n".join(lines)


def span_facts(request: RequestTimeline, span: TickSpan) -> str:
    """Return the tooltip of a span of a row."""
    if span.first == span.last:
        where = f"tick {span.first}"
    else:
        where = f"{quantity(span.ticks, 'tick')} from {span.first} to {span.last}"
    text = f"{row_name(request)}, {MEANINGS[span.kind].partition(':')[0]}, {where}"
    if not span.tokens:
        return text
    text += f": {quantity(span.tokens, 'token')}"
    if span.drafted:
        text += f", {span.accepted} of {quantity(span.drafted, 'drafted token')} right"
    if span.kind == "prefill" and span.ticks == 1 and span.start is not None:
        text += f", positions {span.start} to {span.start + span.tokens - 1}"
    return text + (", computed again" if span.kind == "prefill" and _is_recomputed(request, span.first) else "")


def tick_facts(ticks: Sequence[Tick]) -> str:
    """Return the tooltip of the ticks of a column."""
    first, last = ticks[0].number, ticks[-1].number
    parts = [f"tick {first}" if first == last else f"ticks {first} to {last}"]
    mean = mean_seconds(ticks)
    if mean is not None:
        parts.append(f"{seconds(mean)}{'' if first == last else ' each'}")
    counts = (
        ("token of prefill", "tokens of prefill", sum(part.tokens for tick in ticks for part in tick.chunks)),
        ("token of decode", "tokens of decode", sum(len(tick.rows) for tick in ticks)),
        ("page copied in", "pages copied in", sum(tick.onloaded_pages for tick in ticks)),
    )
    parts += [quantity(count, one, several) for one, several, count in counts if count]
    return ", ".join(parts)


def _is_recomputed(request: RequestTimeline, tick: int) -> bool:
    """Return True if the work of a tick for a request came after a preemption."""
    return bool(request.preemptions) and request.preemptions[0] <= tick
