"""A save leaves a worker thread of AnyIO what it needs to report its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread
from typing import Any

import numpy as np
import pytest
from anyio import fail_after, to_thread

from rekindle.core.store import entries
from tests.waiting import PATIENCE


class EarlierOrbax:
    """Orbax before 0.12.8, as on Colab: it registers its loop at the thread, and then deletes it."""

    def save(self, path: Path, _: dict[str, Any]) -> None:
        thread: Any = current_thread()
        thread.loop = thread.main_task = object()
        path.mkdir()
        del thread.loop, thread.main_task


@contextmanager
def earlier_orbax(compressed: bool) -> Iterator[EarlierOrbax]:
    yield EarlierOrbax()


@pytest.mark.anyio
async def test_a_save_on_a_worker_of_anyio_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_checkpointer", earlier_orbax)

    def save() -> list[str]:
        before = set(vars(current_thread()))
        entries._save(tmp_path, {"a": np.zeros(3)}, False)
        return sorted(before.symmetric_difference(vars(current_thread())))

    with fail_after(PATIENCE):
        assert await to_thread.run_sync(save, abandon_on_cancel=True) == []
