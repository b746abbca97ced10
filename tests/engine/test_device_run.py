"""`make device` runs to its end on a CPU with small sizes, so that no minute of a GPU is lost to a typo."""

import json
from pathlib import Path

import pytest

from tests.device.__main__ import fits, missing, table
from tests.device.parts import PARTS, Part, is_done, run

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.module)
def test_a_part_runs_to_its_end_and_is_not_run_twice(part: Part, tmp_path: Path) -> None:
    assert run(part, tmp_path, tiny=True) == "done"
    out = tmp_path / f"{part.module}.json"
    rows = json.loads(out.read_text())["rows"]
    assert rows
    assert [row["error"] for row in rows if "error" in row] == []
    assert is_done(out)
    assert run(part, tmp_path, tiny=True) == "done before"
    assert table(part, "done", tmp_path).count("\n") > 4 + len(rows)


def test_a_part_that_was_stopped_keeps_its_rows_and_runs_again(tmp_path: Path) -> None:
    out = tmp_path / "limits.json"
    out.write_text(json.dumps({"done": False, "rows": [{"": "copy, GB/s", "value": 1.0}]}))
    assert "| copy, GB/s | 1 |" in table(
        next(part for part in PARTS if part.module == "limits"), "stopped after 30 s", tmp_path
    )
    assert not is_done(out)


def test_a_part_that_would_end_after_nine_minutes_is_left_for_the_next_run() -> None:
    assert all(fits(part, 0.0) for part in PARTS)
    assert not fits(Part("limits", "", 20), 515.0)


def test_nothing_is_missing_here() -> None:
    assert missing() == []
