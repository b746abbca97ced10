"""Kernels that tutorial 06 starts and kills, the directory that outlives them, and a picture of what they took."""

import contextlib
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager, start_new_async_kernel

from rekindle.__main__ import main
from rekindle.core.store.directory import cache_dir
from rekindle.views.drawing import CHARACTER, Drawing, svg_text

SHADES = ("130,130,130", "230,140,20", "40,130,220")
"""The colours of a bar's parts, as red, green and blue."""
LONGEST = 700
"""The pixels of the longest bar."""


class Cache:
    """A cache directory that shares the downloaded models with yours, and is empty otherwise.

    Attributes:
        path: where it is, until `remove` or until the process ends.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="rekindle-")  # with mode 0700, which the stores insist on
        self.path = Path(self._directory.name).resolve()
        (self.path / "models").symlink_to(cache_dir("models"))

    def command(self, *arguments: str, status: int = 0) -> None:
        """Run `rekindle cache ARGUMENTS` on it, check the exit status, and print what it says with shorter paths."""
        said = io.StringIO()
        with mock.patch.dict(os.environ, REKINDLE_CACHE=str(self.path)), contextlib.redirect_stdout(said):
            assert main(["cache", *arguments]) == status
        print(self.shortened(said.getvalue()))

    def shortened(self, text: str) -> str:
        """Return a text with short names for the directories in it."""
        return text.replace(str(cache_dir("models").resolve()), "(yours)").replace(str(self.path), "CACHE")

    def remove(self) -> None:
        """Delete it. The models stay."""
        self._directory.cleanup()


class Kernel:
    """A Jupyter kernel, which is a process of its own that runs cells."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        self._manager = manager
        self._client = client

    @classmethod
    async def start(cls, cache: Cache) -> "Kernel":
        """Start a kernel whose cache directory is `cache`."""
        environment = {**os.environ, "REKINDLE_CACHE": str(cache.path)}
        return cls(*await start_new_async_kernel(env=environment, stderr=subprocess.DEVNULL))

    async def run(self, cell: str) -> str:
        """Run a cell, wait until it has ended, and return what it printed, warnings included."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])

        reply = await self._client.execute_interactive(cell, output_hook=hear, allow_stdin=False)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(said)

    async def time(self, cells: Mapping[str, str]) -> dict[str, float]:
        """Run cells, and return the seconds that each took, by name."""
        seconds = {}
        for name, cell in cells.items():
            started = time.perf_counter()
            await self.run(cell)
            seconds[name] = time.perf_counter() - started
        return seconds

    async def kill(self) -> int:
        """End the process as `kill -9` does, which leaves it no time for anything, and return its exit status."""
        provisioner: Any = self._manager.provisioner
        process = provisioner.process
        self._client.stop_channels()
        await self._manager.shutdown_kernel(now=True)
        return int(process.returncode)


def bars(runs: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Draw a bar for each run, with a part for each of its cells.

    Args:
        runs: for each run the seconds of its three cells by name; all runs have the same cells.
    """
    longest = max(sum(seconds.values()) for seconds in runs.values())
    left, parts = 4.0, []
    for name, shade in zip(next(iter(runs.values())), SHADES, strict=True):
        parts += [_part(left, 4, 14, shade), svg_text(left + 20, 15, name)]
        left += 36 + CHARACTER * len(name)
    lines = []
    for row, (name, seconds) in enumerate(runs.items()):
        top, left = 46 * row + 30, 4.0
        told = ", ".join(f"{cell} {taken:.1f}" for cell, taken in seconds.items())
        lines.append(f"{name}: {sum(seconds.values()):.1f} s ({told})")
        parts.append(svg_text(left, top + 14, lines[-1]))
        for taken, shade in zip(seconds.values(), SHADES, strict=True):
            parts.append(_part(left, top + 20, LONGEST * taken / longest, shade))
            left += LONGEST * taken / longest
    return Drawing("Starts", "in seconds", 46 * len(runs) + 34, "".join(parts), "\n".join(lines))


def _part(left: float, top: int, width: float, shade: str) -> str:
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="14" fill="rgb({shade})" fill-opacity="0.7"/>'
