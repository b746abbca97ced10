"""Trace decode steps of 1B widths: the share of time in which the device works, and the kernels that take the most."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

from tests.device.parts import Rows, main
from tests.device.steps import CASES, REPEATS, WARM_UP, Model
from tests.device.widths import TINY

KERNELS = 16
STEPS = WARM_UP + REPEATS


def measure(rows: Rows) -> None:
    """Trace steps of some numbers of rows."""
    case, counts, context = (replace(CASES[0], widths=TINY), (1,), 32) if rows.tiny else (CASES[0], (1, 32), 512)
    model = Model(case, counts, [context], [])
    for count in counts:
        kernels = Counter[str]()
        rows.attempt(f"{count} rows", partial(traced, model, count, context, kernels))
        for name, microseconds in kernels.most_common(KERNELS):
            rows.add(**{"": f"{count} rows: {name}", "us": microseconds / STEPS})


def traced(model: Model, count: int, context: int, kernels: Counter[str]) -> Mapping[str, Any]:
    """Trace steps; add the microseconds of each kernel, in all steps."""
    model.decode_seconds(count, context)
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            model.decode_seconds(count, context)
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
        streams = [
            line for plane in data.planes if "GPU" in plane.name for line in plane.lines if "Stream" in line.name
        ]
        events = [(each.name, each.start_ns, each.duration_ns) for line in streams for each in line.events]
    if not events:
        return {"us": 0.0, "device works": 0.0, "calls": 0.0}
    for name, _, duration in events:
        kernels[f"{name:.70}"] += duration / 1e3
    span = max(start + duration for _, start, duration in events) - min(start for _, start, _ in events)
    busy = sum(duration for *_, duration in events)
    return {"us": span / STEPS / 1e3, "device works": busy / span, "calls": len(events) / STEPS}


if __name__ == "__main__":
    main(measure)
