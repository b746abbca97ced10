"""Tiers of tests, and the choice of tiers for a change; the standard library alone, as `.ci/run` starts it.

`make test` runs at each change. A further tier runs if its inputs differ from the inputs of its last pass: their digest
is in tests/passed.json. `begins` and `passed` are the first and the last word of its target in the Makefile. One more
tier is run in turn, to show in time if something is missing among the inputs of a tier.

A pass also notes the seconds of the tier and of `make test` in the same checkout. Their ratio and the seconds of this
run's `make test` predict the seconds of the tier. A tier that would end too late is left: it loses its digest, and so
comes first in the next run.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PASSED: Final = Path("tests/passed.json")
BEGUN: Final = Path("build/begun")
TOOK: Final = Path("build/seconds_of_test")
"""The seconds of the last `make test` in this checkout, for the estimates of the tiers."""

MINUTES: Final = 45
"""The minutes by which the last tier of `.ci/run` should end; the check has 90."""
ASSUMED_SECONDS: Final = 600
"""The seconds of a tier without a note, at TYPICAL_TEST."""
TYPICAL_TEST: Final = 420
"""The seconds of `make test` on two cores."""
SET_UP: Final = 90
"""The seconds of making one environment."""

HELD: Final = tuple(
    f"toolkit/rekindle/{name}/" for name in ("chats", "client", "mapping", "scoring", "session", "tools")
)
"""The API of a session's user."""
CORE: Final = (
    *(f"toolkit/rekindle/core/{name}.py" for name in ("buckets", "page", "policy")),
    *(
        f"toolkit/rekindle/core/{name}/"
        for name in (
            "concurrency",
            "device",
            "engine",
            "messages",
            "models",
            "request",
            "scheduler",
            "store",
            "text",
        )
    ),
    *HELD,
    "toolkit/rekindle/assembly/",
    "toolkit/rekindle/formats/",
    "toolkit/rekindle/settings/",
    "toolkit/rekindle/hosts/",
    "toolkit/rekindle/replicas/",
    "toolkit/rekindle/results/",
)
"""The generation of tokens, and its callers."""
STEP: Final = (
    "toolkit/rekindle/core/models/adapters/",
    "toolkit/rekindle/core/models/config/",
    "toolkit/rekindle/core/models/feed_forward/",
    "toolkit/rekindle/core/models/states/",
    "toolkit/rekindle/core/models/streams/",
    "toolkit/rekindle/core/models/taps/",
    "toolkit/rekindle/core/models/vision/",
    *(
        f"toolkit/rekindle/core/models/{name}.py"
        for name in (
            "abstract",
            "attention",
            "decoder",
            "distances",
            "draft_head",
            "latent",
            "layer",
            "layers",
            "mixing",
            "rope",
            "shard",
        )
    ),
    "toolkit/rekindle/core/device/",
)
"""The parts of a tick's program, without its kernels."""
COMPILED: Final = (
    *STEP,
    "kernels/rekindle_kernels/",
    "tests/engine/test_cross_compile.py",
    "tests/engine/test_mesh_compiles.py",
    "tests/kernels/topologies.py",
)
"""The inputs of compilers for other devices, with their tests."""
FACES: Final = ("toolkit/rekindle/markup.py", "toolkit/rekindle/notebook/", "toolkit/rekindle/views/")
"""The displays of notebooks."""
SERVED: Final = (
    *(
        f"toolkit/rekindle/{name}/"
        for name in ("core/text", "formats/rendering", "formats/responses", "results", "server")
    ),
)
"""The answers to clients of the server."""

SHARED: Final = ("tests/conftest.py", "tests/reruns.py", "tests/waiting.py", "tests/watchdog.py")
"""The base of every test, on every version of its libraries, and so an input of all tiers."""

TIERS: Final[dict[str, tuple[str, ...]]] = {
    "test-unit": (*CORE, "toolkit/rekindle/cli/", "toolkit/rekindle/server/", "tests/unit/"),
    "test-engine": (*CORE, "kernels/rekindle_kernels/", "tests/engine/", "tests/goldens/encoders/", "tests/loops.py"),
    "test-images": (
        *CORE,
        "kernels/rekindle_kernels/",
        "tests/engine/",
        "tests/goldens/vision/",
        "tests/images/",
        "tests/loops.py",
    ),
    "test-mesh": (
        *STEP,
        "toolkit/rekindle/assembly/",
        "toolkit/rekindle/core/engine/",
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
    "test-cpus": (
        *STEP,
        "toolkit/rekindle/formats/families/",
        "kernels/rekindle_kernels/",
        "tests/cpus.py",
        "tests/goldens/families/",
        "tests/kernels/",
        "tests/unit/logits.py",
        *(
            f"tests/unit/models/test_{name}.py"
            for name in ("gemma3n", "hidden_states", "models", "quantize", "states", "taps")
        ),
    ),
    "test-tpu": (*COMPILED, "tests/kernels/test_tpu_compiles.py"),
    "test-gpu": (*COMPILED, "tests/kernels/test_gpu_compiles.py", "tests/engine/test_gpu_programs.py"),
    "test-versions": (
        "kernels/rekindle_backend.py",
        "pyproject.toml",
        "tests/engine/test_open.py",
        "tests/unit/store/test_program_store.py",
        "toolkit/rekindle/core/device/",
        "toolkit/rekindle/core/store/",
    ),
    "test-colab": (
        *STEP,
        "kernels/rekindle_kernels/gpu/",
        "kernels/rekindle_kernels/tpu/",
        "pyproject.toml",
        "tests/colab/",
        "tests/notebook/",
        "toolkit/rekindle/notebook/",
    ),
    "test-notebook": (*FACES, *HELD, "tests/notebook/"),
    "tutorials": (*HELD, "toolkit/rekindle/results/", "tutorials/", "README.md"),
    "test-browser": (*FACES, "tests/browser/", "toolkit/rekindle/chats/", "toolkit/rekindle/marimo.py"),
    "test-clients": (
        *SERVED,
        "tests/clients/",
        "toolkit/llm_rekindle/",
        "toolkit/rekindle/chats/",
        "toolkit/rekindle/cli/chat/",
        "toolkit/rekindle/tools/",
    ),
    "test-harness": (*HELD, "tests/harness/", "toolkit/rekindle/server/common/", "tutorials/guides/evaluating.md"),
    "test-tunix": (
        *HELD,
        "toolkit/rekindle/assembly/",
        "tests/training/",
        "tutorials/18_train_with_tunix.py",
    ),
    "test-ray": (
        "toolkit/rekindle/assembly/",
        "toolkit/rekindle/core/engine/",
        "toolkit/rekindle/core/messages/",
        "toolkit/rekindle/replicas/",
        "tests/replicas/",
    ),
    "test-real": (
        "kernels/rekindle_kernels/xla/",
        "toolkit/rekindle/formats/checkpoints/gguf/",
        "tests/goldens/real/",
        "tests/real/",
    ),
    "test-tools": (
        ".pre-commit-config.yaml",
        "Makefile",
        "tests/bench/",
        "tests/documents.py",
        "tests/mutants.py",
        "tests/peers/",
        "tests/prose.py",
        "tests/tiers.py",
        "tests/tools/",
    ),
    "docs": ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "toolkit/rekindle/__init__.py", "tutorials/"),
}
"""The inputs of each tier, files and folders, by its target in the Makefile."""
FOLDERS: Final = ("test-unit", "test-engine", "test-images", "test-mesh", "test-kernels", "test-notebook")
"""The tiers with the wider tests of a folder."""
DEEP: Final = (
    "test-all",
    *(tier for tier in TIERS if tier not in FOLDERS),
)
"""The targets of the deep run: `test-all` has the tests of `make test` and of the folders' tiers, unreduced."""


def main() -> int:
    """Run the verb of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="tests/tiers.py", description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("begins", "passed"):
        verbs.add_parser(verb).add_argument("target", choices=["test", *TIERS])
    verbs.add_parser("due")
    verbs.add_parser("deep")
    verbs.add_parser("run").add_argument("--spent", type=float, default=0.0, help="seconds of the check so far")
    options = parser.parse_args()
    os.chdir(ROOT)
    match options.verb:
        case "begins":
            begins(options.target)
        case "passed":
            passes(options.target)
        case "due":
            print(*due_tiers())
        case "deep":
            return deep()
        case "run":
            return run(options.spent)
    return 0


def digest(tier: str) -> str:
    """Return the digest of a tier's inputs as they are now: hexadecimal digits over names and contents."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *SHARED, *TIERS.get(tier, ())],
        stdout=subprocess.PIPE,
        check=True,
    )
    whole = hashlib.sha256()
    for name in sorted(set(listing.stdout.decode().split("\0")) - {""}):
        if Path(name).is_file():
            whole.update(f"{name}\0{hashlib.sha256(Path(name).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def due_tiers() -> list[str]:
    """Return the tiers left last time, then tiers with changed inputs, then the one whose turn it is; print why."""
    notes = _notes()
    commits = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, check=True)
    turn = int(commits.stdout) % len(TIERS)
    pending, changed, unchanged = [], [], []
    for tier in (*list(TIERS)[turn:], *list(TIERS)[:turn]):
        noted = notes.get(tier, {}).get("digest")
        if noted is None:
            pending.append(tier)
        elif noted != digest(tier):
            changed.append(tier)
        else:
            unchanged.append(tier)
    in_turn = [tier for tier in unchanged if tier == list(TIERS)[turn]]
    reasons = {
        "it was left, or has not passed yet": pending,
        "its inputs are not those that it passed with": changed,
        "it is its turn": in_turn,
    }
    for reason, tiers in reasons.items():
        for tier in tiers:
            print(f"{tier}: {reason}", file=sys.stderr)
    return pending + changed + in_turn


def run(spent: float) -> int:
    """Run the due tiers with enough time, after `spent` seconds of the check; return the exit status."""
    began = time.monotonic() - spent
    late = {}
    for tier in due_tiers():
        expected = expected_seconds(tier)
        if time.monotonic() - began + expected > MINUTES * 60:
            late[tier] = expected
            continue
        print(f"== make {tier}, about {expected / 60:.0f} min", flush=True)
        tier_began = time.monotonic()
        if status := subprocess.run(["make", tier]).returncode:
            return status
        print(f"== make {tier} took {time.monotonic() - tier_began:.0f} s", flush=True)
    if late:
        leave(late)
        print(f"== LEFT, as they would not end by minute {MINUTES}; still due, and first next time:")
        print(*(f"{tier}: about {seconds / 60:.0f} min" for tier, seconds in late.items()), sep="\n")
    return 0


def expected_seconds(tier: str) -> float:
    """Return the expected seconds of a tier here, from its noted seconds, the last `make test` and its environments."""
    note = _notes().get(tier, {})
    took = float(TOOK.read_text(encoding="utf-8")) if TOOK.exists() else TYPICAL_TEST
    seconds = note.get("seconds", ASSUMED_SECONDS) * took / note.get("seconds_of_test", TYPICAL_TEST)
    recipe = subprocess.run(["make", "--dry-run", tier], capture_output=True, text=True)
    return float(seconds + SET_UP * recipe.stdout.count(".ci/environment"))


def leave(tiers: Iterable[str]) -> None:
    """Drop the digests of late tiers: they are due until they pass."""
    notes = _notes()
    for tier in tiers:
        notes.get(tier, {}).pop("digest", None)
    _write(notes)


def deep() -> int:
    """Run every target of the deep run, whatever fails; print the seconds of each, and return the exit status."""
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


def begins(target: str) -> None:
    """Note the inputs of a tier, or of `make test`, at the start of its run."""
    noted = BEGUN / target
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(digest(target), encoding="utf-8")


def passes(target: str) -> None:
    """Note a passed tier, unless its inputs changed meanwhile, and its seconds, or the seconds of `make test`."""
    start = BEGUN / target
    seconds = time.time() - start.stat().st_mtime
    reduced = not os.environ.get("DEEP")
    if target == "test":
        if reduced:
            TOOK.write_text(f"{seconds:.0f}\n", encoding="utf-8")
        return
    inputs = digest(target)
    if start.read_text(encoding="utf-8") != inputs:
        print(f"{target}: its inputs changed while it ran, so that it is not noted as passed")
        return
    notes = _notes()
    note = notes.setdefault(target, {})
    note["digest"] = inputs
    if reduced and TOOK.exists():
        note |= {"seconds": round(seconds), "seconds_of_test": int(TOOK.read_text(encoding="utf-8"))}
    _write(notes)


def _notes() -> dict[str, dict[str, Any]]:
    notes = json.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}
    # A note of before the seconds is the digest alone.
    return {tier: {"digest": note} if isinstance(note, str) else note for tier, note in notes.items()}


def _write(notes: dict[str, dict[str, Any]]) -> None:
    PASSED.write_text(json.dumps(notes, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
