"""Runs tests on an emulated 64-bit ARM, with the native kernels for NEON: `python -m tests.emulated [tests]`.

The system and its packages are made once, in `.venv-arm`. That takes Debian's packages debootstrap, qemu-user-static
and g++-aarch64-linux-gnu, and debootstrap takes root; DEBIAN_MIRROR may name a mirror. Emulated programs start others
natively, so the compiler is this machine's own.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SYSTEM: Final = ROOT / ".venv-arm"
PACKAGES: Final = SYSTEM / "packages"
TOOLS: Final = {
    "debootstrap": "debootstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
RELEASE, PYTHON, LIBC_MINOR = "bookworm", "3.11", 36


def run(tests: list[str]) -> int:
    """Make what is missing, build the library, and run tests; return the exit status of pytest."""
    if missing := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        raise SystemExit(f"an emulated ARM takes packages that are not here: apt-get install {' '.join(missing)}")
    if not (SYSTEM / f"usr/bin/python{PYTHON}").exists():
        _make_system()
    if not (PACKAGES / "jax").exists():
        _install()
    _emulated("-m", "rekindle_kernels.cpu.build").check_returncode()
    return _emulated("-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "0", *tests).returncode


def _make_system() -> None:
    """Unpack a small Debian with Python; nothing in it is set up, as only Python and its libraries are run."""
    mirror = [each] if (each := os.environ.get("DEBIAN_MIRROR")) else []
    options = ["--foreign", "--arch=arm64", "--variant=minbase", "--include=python3"]
    subprocess.run(["debootstrap", *options, RELEASE, str(SYSTEM), *mirror], check=True)
    for archive in (SYSTEM / "var/cache/apt/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(SYSTEM)], check=True)


def _install() -> None:
    """Install what tests of kernels and sessions import, as wheels for ARM."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, LIBC_MINOR + 1)]
    options = [*platforms, "--platform=manylinux2014_aarch64", f"--python-version={PYTHON}", "--only-binary=:all:"]
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target"]
    subprocess.run([*install, str(PACKAGES), *options, *wanted], check=True)


def _emulated(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the emulated system's Python in the repository."""
    found = [ROOT / "toolkit", ROOT / "kernels", ROOT, PACKAGES]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, found)), "CXX": "aarch64-linux-gnu-g++"}
    python = ["qemu-aarch64-static", "-L", str(SYSTEM), str(SYSTEM / f"usr/bin/python{PYTHON}")]
    return subprocess.run([*python, *arguments], cwd=ROOT, env=os.environ | environment, check=False)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
