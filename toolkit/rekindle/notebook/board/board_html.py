"""HTML of the dashboard's snapshot."""

from collections.abc import Mapping, Sequence

from rekindle import markup
from rekindle.assembly.stats import prompt_sources
from rekindle.core.words import percent, quantity
from rekindle.markup import visible
from rekindle.notebook.board.board import COLUMNS, Board, free_pages, pages, pages_elsewhere
from rekindle.notebook.board.rates import SECONDS

WIDTH, HEIGHT = 180, 34
"""The size of the sparkline in SVG units; the page scales it."""
SHADES = {
    "in use": f"rgba({markup.TIERS['device']},0.85)",
    "cached": f"rgba({markup.TIERS['device']},0.35)",
    "device": f"rgba({markup.TIERS['device']},0.85)",
    "host": f"rgba({markup.TIERS['host']},0.85)",
    "disk": f"rgba({markup.TIERS['disk']},0.85)",
    "slots": f"rgba({markup.COOL},0.75)",
    "ready": f"rgb({markup.EMBER})",
}
"""The colours of the parts of bars, by name; other parts are transparent."""
MARKS = {"running": "60,160,90", "paused": "225,150,30", "stuck": "200,60,50"}
"""The colours of the mark in the header, by state, without an alpha."""
GRID = "display:grid;grid-template-columns:repeat(auto-fit,minmax(16em,1fr));gap:0.7em 2.2em"


def board_bundle(board: Board) -> markup.Bundle:
    """Return the whole snapshot as text and as HTML."""
    return markup.bundle(str(board), board_html(board))


def board_html(board: Board) -> str:
    """Return the whole snapshot as HTML."""
    facts = board.facts
    state = markup.BETWEEN.join((f"{facts.name} ({facts.dtype})", board.state()))
    mark = MARKS.get(facts.state.partition(" ")[0], "128,128,128")
    return markup.card("Dashboard", state, overview_html(board), requests_html(board), mark=mark)


def overview_html(board: Board) -> str:
    """Return the figures of the snapshot as HTML, without its header and the table of requests."""
    facts, stats = board.facts, board.facts.stats.scheduler
    here, elsewhere = pages(stats), pages_elsewhere(stats)
    free, _, of_all = free_pages(stats).partition(" ")
    slots = f"of {facts.slots} in use, {stats.waiting:,} waiting"
    ready = _progress("ready", facts.ready_programs, facts.total_programs)
    sections = (
        _section("tokens per second", _speed(board), _sparkline(board.rate.history)),
        _section("time to the first token", _number(*(board.first_token() or ("-", "none in the last minute")))),
        _section("slots", _number(f"{stats.running}", slots), _progress("slots", stats.running, facts.slots)),
        _section("pages", _number(free, of_all), _bar(here, "page"), _legend(here, elsewhere)),
        _section(
            "tokens of prompts, found in",
            _bar(prompt_sources(stats), "token"),
            _shares(prompt_sources(stats)),
        ),
        _section("programs", ready, _programs(board)),
        *(_section(name, _number(*text.split(" ", 1))) for name, text in board.drafts().items()),
    )
    faded = ";opacity:0.85" if facts.has_ended else ""
    return f'<div style="{GRID}{faded}">{"".join(sections)}</div>{_lanes(board)}'


def requests_html(board: Board) -> str:
    """Return the table of unfinished requests as HTML; empty without requests."""
    rows = board.requests()
    if not rows:
        return ""
    more = markup.note(f"and {board.facts.more:,} more") if board.facts.more else ""
    return f'<div style="margin-top:0.7em">{markup.table(rows, COLUMNS)}{more}</div>'


def _lanes(board: Board) -> str:
    """Return a line of HTML for each lane; empty with a single lane."""
    lines = "".join(
        f'<div>{visible(name)} <span style="{markup.PALE}">{visible(text)}</span></div>'
        for name, text in board.lanes().items()
    )
    return lines and f'<div style="margin-top:0.7em">{lines}</div>'


def _section(name: str, *parts: str) -> str:
    """Return a section of HTML parts below its name."""
    return f'<div><div style="{markup.PALE}">{visible(name)}</div>{"".join(parts)}</div>'


def _number(number: str, words: str) -> str:
    """Return a number in large type, followed by words."""
    return (
        f'<div><span style="{markup.BIG};margin-right:0.3em">{visible(number)}</span> '
        f'<span style="{markup.PALE}">{", ".join(map(markup.unbroken, words.split(", ")))}</span></div>'
    )


def _speed(board: Board) -> str:
    rate = board.rate
    if rate.now is None or rate.mean is None:
        return _number("-", "known after a second")
    return _number(f"{rate.now:,.1f}", f"now, {rate.mean:,.1f} over {rate.seconds:.0f} s")


def _programs(board: Board) -> str:
    ready, _, sources = board.programs().partition(", ")
    restored = f", {quantity(board.facts.restored_pages, 'cached page')} found" if board.facts.restored_pages else ""
    return f'<div>{visible(ready)}</div> <div style="{markup.PALE}">{visible(sources + restored)}</div>'


def _shares(parts: Mapping[str, int]) -> str:
    whole = sum(parts.values())
    return _legend({name: percent(count / whole) for name, count in parts.items()}, {}) if whole else "none yet"


def _legend(parts: Mapping[str, int | str], others: Mapping[str, int]) -> str:
    """Return the parts of a bar with colour, name and count, and after them the others, without colour."""
    items = [_entry(name, count, shade=SHADES.get(name, "transparent")) for name, count in parts.items()]
    items += [_entry(name, count, shade=None) for name, count in others.items() if count]
    return f"<div>{' '.join(items)}</div>"


def _entry(name: str, count: int | str, shade: str | None) -> str:
    swatch = (
        f'<span style="display:inline-block;width:0.65em;height:0.65em;margin-right:0.35em;background:{shade};'
        'border:1px solid rgba(128,128,128,0.7);border-radius:2px;box-sizing:border-box"></span>'
    )
    text = count if isinstance(count, str) else f"{count:,}"
    return (
        f'<span style="white-space:nowrap;margin-right:0.7em">{swatch if shade else ""}{visible(text)} '
        f'<span style="{markup.PALE}">{visible(name)}</span></span>'
    )


def _bar(parts: Mapping[str, int], unit: str) -> str:
    """Return a bar of parts; `parts` has their counts by name, and `unit` is the unit of the counts."""
    label = ", ".join(f"{name}: {quantity(count, unit)}" for name, count in parts.items())
    filled = {SHADES[name]: count for name, count in parts.items() if name in SHADES}
    return markup.bar(filled, label, whole=sum(parts.values()))


def _progress(name: str, done: int, whole: int) -> str:
    """Return a bar of the part of a whole that is in use or done; `name` is a name of `SHADES`."""
    return markup.bar({SHADES[name]: done}, f"{name}: {done:,} of {whole:,}", whole=whole, role="progressbar")


def _sparkline(history: Sequence[float]) -> str:
    """Draw the number of tokens in each second of the last minute, latest at the right."""
    step, highest = WIDTH / SECONDS, max(history, default=0.0)
    start = WIDTH - len(history) * step
    tops = [HEIGHT - 1 - (HEIGHT - 3) * count / highest if highest else HEIGHT - 1 for count in history]
    line = " ".join(f"{start + (place + 0.5) * step:.1f},{top:.1f}" for place, top in enumerate(tops))
    edges = f"{start + step / 2:.1f},{HEIGHT} {line} {WIDTH - step / 2:.1f},{HEIGHT}"
    curve = (
        f'<polygon points="{edges}" fill="rgb({markup.COOL})" fill-opacity="0.18"/>'
        f'<polyline points="{line}" fill="none" stroke="rgb({markup.COOL})" stroke-width="1.5" stroke-linejoin="round" '
        'vector-effect="non-scaling-stroke"/>'
        if history
        else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="tokens per second over the last minute" style="display:block;width:100%;height:2.4em">'
        f"<title>at most {highest:,.0f} tokens in a second of the last minute</title>{curve}"
        f'<path d="M0 {HEIGHT - 0.5}H{WIDTH}" stroke="currentColor" stroke-opacity="0.25" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )
