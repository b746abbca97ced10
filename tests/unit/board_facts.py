"""Make facts about engines, for the tests of the dashboard."""

from dataclasses import replace

from rekindle.assembly.stats import Stats
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.notebook.board.board import Facts
from rekindle.results.facts.figures import Standing

COUNTS = SchedulerStats(
    waiting=3,
    running=29,
    pages=1423,
    free_pages=1011,
    cached_pages=500,
    evictable_pages=388,
    host_pages=96,
    disk_pages=1210,
    prompt_tokens=5000,
    device_hit_tokens=2500,
    host_hit_tokens=1000,
    disk_hit_tokens=500,
    computed_tokens=1000,
)
FACTS = Facts(
    name="a-model",
    dtype="float32",
    state="running",
    has_ended=False,
    stats=Stats(COUNTS, programs=14, loads=9, compilations=2, unexpected_compilations=0),
    slots=32,
    first_tokens=(0.5, 0.1, 0.3),
    ready_programs=11,
    total_programs=13,
    restored_pages=412,
    requests={7: Standing("running", 1234, 56, 3.21), 8: Standing("waiting", None, 0, 130.0)},
    more=23,
)
EMPTY = replace(
    FACTS, stats=Stats(SchedulerStats(pages=9, free_pages=9), 0, 0, 0, 0), first_tokens=(), requests={}, more=0
)
