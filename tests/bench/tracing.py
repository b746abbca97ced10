"""Measure the cost of `session.trace` for the engine's thread, of each message and each tick, and in memory.

The messages are of a decoding batch on the fake device. The time is the CPU time of recording.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

from rekindle.core.messages.record import MessageRecord
from rekindle.testing import fake_session
from rekindle.views.records import trace_record

RUNNING, NEW_TOKENS, ROUNDS = 32, 60, 15


def batch() -> tuple[list[MessageRecord], int]:
    """Return the messages of a batch and the number of its ticks."""
    records: list[MessageRecord] = []
    with fake_session(max_running=RUNNING) as session:
        with session.watch(records.append):
            session.generate_sync(token_ids=[[1 + i] * 200 for i in range(RUNNING)], max_tokens=NEW_TOKENS)
        return records, session.stats.scheduler.ticks


def microseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of the fastest of several rounds, because other processes only ever add to it."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return 1e6 * best


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    records, ticks = batch()
    cost = microseconds(lambda: [trace_record(each, 0.0) for each in records])
    tracemalloc.start()
    trace = [trace_record(each, 0.0) for each in records]
    memory = tracemalloc.get_traced_memory()[0]
    print(f"recording: {cost / len(records):.1f} µs a message, {cost / ticks:.0f} µs a tick at {RUNNING} running")
    print(f"memory: {memory / len(trace):.0f} bytes a message, {len(trace) / ticks:.0f} messages a tick")
