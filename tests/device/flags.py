"""Measure the steps of 1B widths with options of XLA, against its defaults."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rekindle.core.device.programs.lowering import COMMANDS, GRAPHS
from tests.device.parts import Rows, main
from tests.device.steps import CASES, Model
from tests.device.widths import TINY

OPTIONS: Mapping[str, Mapping[str, str | bool]] = {
    "defaults of XLA": {},
    "conditions in the graph, as in sessions": {GRAPHS: COMMANDS},
    "no graphs": {GRAPHS: ""},
}


def measure(rows: Rows) -> None:
    """Measure each option, as far as the limit allows; a tiny run has the defaults alone, since others name a GPU."""
    case, counts, context = (replace(CASES[0], widths=TINY), (1, 2), 32) if rows.tiny else (CASES[0], (1, 32, 256), 512)
    model = Model(case, counts, [context], [context])

    def figures(options: Mapping[str, str | bool]) -> Mapping[str, Any]:
        if not rows.tiny:
            model.compile(options)
        decode = {f"{count} rows, ms": 1e3 * model.decode_seconds(count, context) for count in counts}
        return {**decode, f"a prompt of {context}, ms": 1e3 * model.prefill_seconds(context)}

    for name, options in OPTIONS.items():
        if not (rows.tiny and options):
            rows.attempt(name, partial(figures, options))


if __name__ == "__main__":
    main(measure)
