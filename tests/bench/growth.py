"""Measure host work that must not grow with a queue, with adapters or with the window of a map.

Each row has the microseconds of CPU time of one action at several sizes; a flat row has about the same at each. The
device is a fake one, so that all of it is work of the host.
"""

import argparse
from collections.abc import Callable, Iterable
from random import Random
from time import process_time

from rekindle.client.adapters import AdapterInfo, AdapterTable
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.waiting import PriorityQueue
from rekindle.testing import fake_limits, fake_session

ACTIONS, ITEMS = 1000, 3000


def microseconds(count: int, act: Callable[[], object]) -> float:
    """Return the CPU time of each of `count` actions in one call."""
    start = process_time()
    act()
    return 1e6 * (process_time() - start) / count


def cancelled(size: int) -> float:
    """Measure the removal of a request from the middle of a queue."""
    queue, limits, params = PriorityQueue(), fake_limits(), SamplingParams(seed=0)
    requests = (Request(number, (1, 2), params, frozenset(), 16) for number in range(size))
    states = [RequestState.of(request, limits) for request in requests]
    for state in states:
        queue.append(state)
    middle = states[size // 2 : size // 2 + ACTIONS]

    def remove() -> None:
        for state in middle:
            queue.remove(state)

    return microseconds(len(middle), remove)


def added(size: int) -> float:
    """Measure the addition of an adapter to others."""
    table, info = AdapterTable(), AdapterInfo("", 1, "")

    def add(names: Iterable[int]) -> None:
        for name in names:
            slot, _ = table.reserve(str(name), 2 * size + ACTIONS)
            assert slot is not None
            table.put(str(name), slot, info)

    add(range(size))
    return microseconds(ACTIONS, lambda: add(range(size, size + ACTIONS)))


def mapped(window: int) -> float:
    """Measure an item of a map with a window, all threads together."""
    random = Random(window)
    items = [[random.randrange(8) for _ in range(4)] for _ in range(ITEMS)]
    with fake_session() as session:
        return microseconds(ITEMS, lambda: session.map_sync(token_ids=items, window=window, max_tokens=2))


ROWS: dict[str, tuple[Callable[[int], float], tuple[int, ...]]] = {
    "cancel a request among": (cancelled, (1000, 10_000, 100_000)),
    "add an adapter to": (added, (100, 1000, 10_000)),
    "map an item in a window of": (mapped, (32, 128, 2000)),
}


def main() -> None:
    """Print a row for each kind of work."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.parse_args()
    for name, (measure, sizes) in ROWS.items():
        print(f"{name:28}", *(f"{size:>9,}: {measure(size):8.1f} us" for size in sizes), flush=True)


if __name__ == "__main__":
    main()
