"""The kernels of the tests: the installed one, and Colab's, with Colab's packages."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import rekindle
import rekindle_kernels
from tests.colab.packages import FOLDER

CURRENT, COLAB = "current", "colab"

ARGUMENTS = ("-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}")
COMMAND = (sys.executable, *ARGUMENTS)
"""The command of the installed kernel."""
COLAB_COMMAND = (str(FOLDER / "bin" / "python"), *ARGUMENTS)
"""The command of Colab's kernel, in the environment of `make test-colab`."""


def command(kernel: str) -> tuple[str, ...]:
    """Return the command that starts a kernel."""
    return COLAB_COMMAND if kernel == COLAB else COMMAND


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment variables of a kernel's process.

    Args:
        home: the place of IPython's profile and history, without the user's own startup files.
    """
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (rekindle, rekindle_kernels)]
    paths = [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": str(home)}
    # If pytest's variables are set, ipykernel does not capture what is not written by Python.
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | ours
