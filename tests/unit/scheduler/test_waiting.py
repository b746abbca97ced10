"""A test waits in vain, and fails with the reason of its wait."""

import pytest

from tests import waiting


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_condition_that_holds_later_is_awaited_step_by_step() -> None:
    steps: list[int] = []
    await waiting.until(lambda: len(steps) == 3, "three steps were taken", step=lambda: steps.append(1))
    assert len(steps) == 3


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_a_condition_that_never_holds_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)
    with pytest.raises(AssertionError, match=r"^waited 0.01 s in vain until pigs flew$"):
        await waiting.until(lambda: False, "pigs flew")
    with pytest.raises(AssertionError, match=r"^waited 0.01 s in vain until pigs flew$"):
        waiting.until_blocking(lambda: False, "pigs flew")
