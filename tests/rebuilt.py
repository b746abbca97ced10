"""Building the native kernels otherwise than for use, to run tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A copy of the package of kernels, imported instead of the checkout's.

    Attributes:
        environment: of processes with the copy.
    """

    environment: Mapping[str, str]

    def pytest(self, tests: list[str], more: Mapping[str, str] | None = None) -> int:
        """Run tests with its library, and with more variables in their environment; return the exit status."""
        environment = {**self.environment, **(more or {})}
        return subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=ROOT, env=environment).returncode


@contextmanager
def rebuilt(code: str, *arguments: str) -> Iterator[Rebuilt]:
    """Copy the package without its library, and run code there that builds it."""
    with TemporaryDirectory(prefix="rekindle-rebuilt-") as folder:
        package = ROOT / "kernels" / "rekindle_kernels"
        shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        copy = Rebuilt(os.environ | {"PYTHONPATH": f"{folder}:{ROOT / 'toolkit'}:{ROOT}"})
        subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, env=copy.environment, check=True)
        yield copy
