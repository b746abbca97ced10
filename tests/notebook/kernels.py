"""The kernels of the tests: the installed one, and Colab's older one."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import rekindle
import rekindle_kernels
from rekindle.core.store.directory import cache_dir

CURRENT, COLAB = "current", "colab"

COLAB_PINS = (
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "ipywidgets==7.7.1",
    "jupyter_client==7.4.9",
    # Only the older kernel needs these. All other packages are those of the installed kernel.
    "backcall==0.2.0",
    "decorator==4.4.2",
    "entrypoints==0.4",
    "ipython_genutils==0.2.0",
    "nest_asyncio==1.5.8",
    "pickleshare==0.7.5",
)

COMMAND = (sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}")


def environment(kernel: str, home: Path) -> Mapping[str, str]:
    """Return the environment variables of a kernel's process.

    Args:
        kernel: CURRENT or COLAB.
        home: the place of IPython's profile and history, without the user's own startup files.
    """
    roots = [Path(package.__file__ or "").parents[1] for package in (rekindle, rekindle_kernels)]
    overlay = [_colab_packages()] if kernel == COLAB else []
    paths = [*map(str, overlay + roots), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": str(home)}
    # If pytest's variables are set, ipykernel does not capture what is not written by Python.
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | ours


def _colab_packages() -> Path:
    """Fetch the pinned packages, once per machine, into a directory that goes before the installed packages."""
    version = ".".join(map(str, sys.version_info[:2]))
    key = hashlib.sha256("\n".join((*COLAB_PINS, version)).encode()).hexdigest()[:16]
    parent = cache_dir("tests")
    target = parent / f"colab-kernel-{key}"
    if not target.is_dir():
        partial = Path(tempfile.mkdtemp(dir=parent))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet", "install"]
        try:
            subprocess.run([*pip, "--no-deps", "--target", str(partial), *COLAB_PINS], check=True)
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another run was faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target
