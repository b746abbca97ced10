"""Closing a session, or failing to open one at any stage, gives the memory of its arrays back."""

import gc
from pathlib import Path
from typing import Any

import jax
import pytest

import rekindle
from rekindle.assembly import building
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.loading import filling
from rekindle.session import opening
from tests.engine.small import SMALL


def live() -> int:
    """Return the bytes of the arrays alive in this process."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.wide
def test_ten_sessions_one_after_the_other_leave_no_array_behind(families: Path) -> None:
    before = live()
    for _ in range(10):
        with rekindle.open_sync(families / "qwen3", **SMALL, progress=False) as session:
            assert session.generate_sync(token_ids=[1, 2, 3], max_tokens=2).token_ids
            assert live() > before
        assert live() == before


STAGES = [
    (building, "open_model"),
    (building, "_lanes"),
    (building, "open_stores"),
    (building, "_executables"),
    (filling, "empty_state"),
    (filling, "load"),
    (filling, "load_towers"),
    (filling, "no_embeddings"),
    (building, "_steppers"),
    (building, "wait_for"),
    (building, "_lane"),
    (building, "_deployment"),
    (LoadedEngine, "engine"),
    (opening, "_session"),
]


@pytest.mark.parametrize(
    ("place", "name"),
    [pytest.param(place, name, id=name, marks=[pytest.mark.wide] * (name != "load")) for place, name in STAGES],
)
@pytest.mark.parametrize("after", [False, True])
def test_an_opening_that_fails_leaves_no_array_behind_though_its_error_is_kept(
    place: Any, name: str, after: bool, families: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = getattr(place, name)

    def failing(*arguments: Any, **options: Any) -> Any:
        if after:
            work(*arguments, **options)
        del arguments, options  # only the variables of Rekindle's own functions are cleared
        raise RuntimeError("at this stage")

    before = live()
    monkeypatch.setattr(place, name, failing)
    with pytest.raises(Exception, match="at this stage") as kept:  # as IPython keeps the last error
        rekindle.open_sync(families / "qwen3", **SMALL, progress=False, precompile="all")
    assert live() <= before  # arrays of earlier tests may end
    assert kept.value.__traceback__ is not None


@pytest.mark.wide
def test_a_wake_that_fails_leaves_no_array_behind_and_the_next_one_succeeds(
    families: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(spans: Any) -> None:
        raise RuntimeError("at this stage")

    with rekindle.open_sync(families / "qwen3", **SMALL, progress=False, precompile="lazy") as session:
        expected = session.generate_sync(token_ids=[1, 2, 3], max_tokens=4).token_ids
        session.sleep_sync()
        asleep = live()
        with monkeypatch.context() as patch:
            patch.setattr("rekindle.assembly.loaded_engine.prefer", fail)
            with pytest.raises(RuntimeError, match="at this stage") as kept:
                session.wake_sync()
        assert live() <= asleep
        assert kept.value.__traceback__ is not None
        session.wake_sync()
        assert session.generate_sync(token_ids=[1, 2, 3], max_tokens=4).token_ids == expected
