"""Tiers of tests, and which of them a change calls for; the standard library alone, as `.ci/run` starts it.

`make test` runs at each change. A further tier runs where its inputs differ from those that it passed with last, whose
digest it notes in tests/passed.json: `begins` and `passed` are the first and the last word of its target in the
Makefile. One more tier is run in turn, which shows in time if something is missing among the inputs of a tier.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PASSED: Final = Path("tests/passed.json")
BEGUN: Final = Path("build/begun")

HELD: Final = tuple(
    f"toolkit/rekindle/{name}/" for name in ("chats", "client", "mapping", "scoring", "session", "tools")
)
"""What a user of a session holds."""
CORE: Final = (
    *(f"toolkit/rekindle/core/{name}.py" for name in ("buckets", "page", "policy", "ray", "route")),
    *(
        f"toolkit/rekindle/core/{name}/"
        for name in (
            "checkpoints",
            "concurrency",
            "device",
            "engine",
            "messages",
            "models",
            "request",
            "routing",
            "scheduler",
            "store",
            "text",
        )
    ),
    *HELD,
    "toolkit/rekindle/hosts/",
    "toolkit/rekindle/replicas/",
    "toolkit/rekindle/results/",
)
"""What generates tokens, and what asks for them."""
STEP: Final = (
    "toolkit/rekindle/core/models/adapters/",
    "toolkit/rekindle/core/models/config/",
    "toolkit/rekindle/core/models/feed_forward/",
    "toolkit/rekindle/core/models/states/",
    "toolkit/rekindle/core/models/streams/",
    "toolkit/rekindle/core/models/taps/",
    *(
        f"toolkit/rekindle/core/models/{name}.py"
        for name in ("attention", "decoder", "features", "latent", "layer", "layers", "mixing", "rope", "shard")
    ),
    "toolkit/rekindle/core/device/",
)
"""What a program of a tick is made of, without its kernels."""
COMPILED: Final = (
    *STEP,
    "kernels/rekindle_kernels/",
    "tests/engine/test_cross_compile.py",
    "tests/engine/test_mesh_compiles.py",
    "tests/kernels/topologies.py",
)
"""What compilers for other devices see, and the tests that show it to them."""
FACES: Final = ("toolkit/rekindle/core/markup.py", "toolkit/rekindle/notebook/", "toolkit/rekindle/views/")
"""What notebooks show."""
SERVED: Final = ("toolkit/rekindle/results/", "toolkit/rekindle/server/", "toolkit/rekindle/core/text/responses/")
"""What clients of the server see."""

SHARED: Final = ("tests/conftest.py", "tests/reruns.py", "tests/waiting.py", "tests/watchdog.py")
"""What runs every test, on every version of its libraries, and so calls for all tiers."""

TIERS: Final[dict[str, tuple[str, ...]]] = {
    "test-unit": (*CORE, "toolkit/rekindle/cli/", "toolkit/rekindle/server/", "tests/unit/"),
    "test-engine": (*CORE, "kernels/rekindle_kernels/", "tests/engine/"),
    "test-mesh": (
        *STEP,
        "toolkit/rekindle/core/engine/",
        "toolkit/rekindle/core/routing/",
        "toolkit/rekindle/hosts/",
        "tests/mesh/",
    ),
    "test-kernels": ("kernels/rekindle_kernels/", "tests/kernels/"),
    "test-native": (
        "kernels/rekindle_kernels/cpu/",
        "tests/instruction_sets.py",
        "tests/kernels/",
        "tests/native/",
        "tests/rebuilt.py",
        "tests/sanitized.py",
    ),
    "test-tpu": (*COMPILED, "tests/kernels/test_tpu_compiles.py"),
    "test-gpu": (*COMPILED, "tests/kernels/test_gpu_compiles.py"),
    "test-versions": (
        "backend/",
        "pyproject.toml",
        "tests/engine/test_open.py",
        "tests/notebook/",
        "tests/unit/test_program_store.py",
        "toolkit/rekindle/core/device/",
        "toolkit/rekindle/core/store/",
    ),
    "test-notebook": (*FACES, *HELD, "tests/notebook/"),
    "tutorials": (*HELD, "toolkit/rekindle/results/", "tutorials/", "README.md"),
    "test-browser": (*FACES, "tests/browser/"),
    "test-clients": (*SERVED, "tests/clients/"),
    "test-lm-eval": (*HELD, "tests/harness/"),
    "test-ray": (
        "toolkit/rekindle/core/engine/",
        "toolkit/rekindle/core/messages/",
        "toolkit/rekindle/core/ray.py",
        "toolkit/rekindle/core/routing/",
        "toolkit/rekindle/replicas/",
        "tests/replicas/",
    ),
    "docs": ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "toolkit/rekindle/__init__.py", "tutorials/"),
}
"""The files and folders that call for each tier: its target in the Makefile, and what it alone tests."""
FOLDERS: Final = ("test-unit", "test-engine", "test-mesh", "test-kernels", "test-notebook")
"""The tiers that are the wider tests of a folder."""
DEEP: Final = (
    "test-all",
    *(tier for tier in TIERS if tier not in FOLDERS),
)
"""The targets of the deep run: `test-all` has what the tiers of folders and `make test` share among them, unreduced."""


def main() -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="tests/tiers.py", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=["begins", "passed", "due", "deep"])
    parser.add_argument("tier", nargs="?", choices=list(TIERS))
    options = parser.parse_args()
    os.chdir(ROOT)
    match options.verb:
        case "begins":
            begins(options.tier)
        case "passed":
            passes(options.tier)
        case "due":
            print(*due())
        case "deep":
            return deep()
    return 0


def digest(tier: str) -> str:
    """Return the digest of a tier's inputs as they are now: hexadecimal digits over names and contents."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *SHARED, *TIERS[tier]],
        stdout=subprocess.PIPE,
        check=True,
    )
    whole = hashlib.sha256()
    for name in sorted(set(listed.stdout.decode().split("\0")) - {""}):
        if Path(name).is_file():
            whole.update(f"{name}\0{hashlib.sha256(Path(name).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def due() -> list[str]:
    """Return the tiers that have not passed with these inputs, and the one whose turn it is; say why of each."""
    passed = _noted(PASSED)
    commits = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, check=True)
    in_turn = list(TIERS)[int(commits.stdout) % len(TIERS)]
    tiers = []
    for tier in TIERS:
        if passed.get(tier) != digest(tier):
            reason = "its inputs are not those that it passed with"
        elif tier == in_turn:
            reason = "it is its turn"
        else:
            continue
        print(f"{tier}: {reason}", file=sys.stderr)
        tiers.append(tier)
    return tiers


def deep() -> int:
    """Run every target of the deep run, whatever fails; print how long each took, and return the exit status."""
    lines = []
    failed = 0
    for target in DEEP:
        print(f"== make {target} DEEP=1", flush=True)
        began, used = time.monotonic(), _cpu_seconds()
        status = subprocess.run(["make", target, "DEEP=1"]).returncode
        failed += status != 0
        outcome = "failed" if status else "passed"
        seconds = f"{time.monotonic() - began:8.0f} s {_cpu_seconds() - used:8.0f} CPU s"
        lines.append(f"{target:16} {outcome} {seconds}")
        print(lines[-1], flush=True)
    print("\nThe deep run:", *lines, sep="\n")
    return min(failed, 1)


def begins(tier: str) -> None:
    """Note the inputs that a run of a tier begins with."""
    noted = BEGUN / tier
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(digest(tier), encoding="utf-8")


def passes(tier: str) -> None:
    """Note that a tier passed, unless its inputs changed meanwhile."""
    inputs = digest(tier)
    if (BEGUN / tier).read_text(encoding="utf-8") != inputs:
        print(f"{tier}: its inputs changed while it ran, so that it is not noted as passed")
        return
    passed = _noted(PASSED) | {tier: inputs}
    PASSED.write_text(json.dumps(passed, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _noted(file: Path) -> dict[str, str]:
    noted: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return noted


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
