"""Measure Rekindle on an accelerator in at most nine minutes, and print tables for the guide.

`make device` runs all parts; those with rows in `--out` from an earlier run are skipped. `--tiny` runs everything with
small sizes on a CPU, to see that it works. Packages that the machine lacks may lie as wheels in `.whl`.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from time import monotonic

from tests.device.parts import GRACE, PARTS, ROOT, Part, number, run

WHEELS, SITE = ROOT / ".whl", Path("/tmp/rekindle-device-site")
MODULES = {"orbax-checkpoint": "orbax.checkpoint"}
MODULES |= {
    "markdown-it-py": "markdown_it",
    "prompt-toolkit": "prompt_toolkit",
    "prometheus-client": "prometheus_client",
}
FOR_TESTS = ["pytest", "hypothesis"]
LIMIT = 540.0
"""Seconds of a run."""
UNUSED = {"anywidget", "ipywidgets", "prompt-toolkit"}
"""Packages for cells and terminals, which no part imports."""


def main() -> None:
    """Run the parts, then print their tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "device")))
    parser.add_argument("--parts", default=",".join(part.module for part in PARTS), help="default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on any device")
    arguments = parser.parse_args()
    if lacking := missing():
        bring(lacking)
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = arguments.parts.split(",")
    parts = [part for part in PARTS if part.module in chosen]
    endings, start = {}, monotonic()
    for part in parts:
        print(f"== {part.title}", flush=True)
        began = monotonic()
        if fits(part, began - start):
            endings[part] = run(part, arguments.out, tiny=arguments.tiny)
        else:
            endings[part] = "left for the next run"
        print(f"== {endings[part]}, {monotonic() - began:.0f} s", flush=True)
    text = "\n".join(table(part, endings[part], arguments.out) for part in parts)
    (arguments.out / "tables.md").write_text(text)
    print(text)
    shutil.rmtree(arguments.out / "cache", ignore_errors=True)
    if any(ending.startswith("failed") for ending in endings.values()):
        sys.exit(1)


def fits(part: Part, elapsed: float) -> bool:
    """Return True if a part ends within nine minutes of the run's begin."""
    return elapsed + part.limit + GRACE <= LIMIT


def missing() -> list[str]:
    """Return the packages of pyproject.toml, and of the tests, that cannot be imported here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=!~;\[ ]", each)[0] for each in project["dependencies"]] + FOR_TESTS
    modules = {name: MODULES.get(name, name.replace("-", "_")) for name in names if name not in UNUSED}
    return [name for name, module in modules.items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def bring(lacking: list[str]) -> None:
    """Install wheels from `.whl` and start again, or end with the command that downloads them."""
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if not wheels or str(SITE) in sys.path:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        platforms = " ".join(f"--platform manylinux{each}_x86_64" for each in ("2014", "_2_28", "_2_31"))
        sys.exit(
            f"missing here: {', '.join(lacking)}. Where there is a network, run\n  python3 -m pip download --no-deps "
            f"--only-binary=:all: --python-version {version} {platforms} -d .whl {' '.join(lacking)}"
        )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target", str(SITE)]
    subprocess.run([*pip, *wheels], check=True)
    path = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(sys.executable, [sys.executable, "-m", "tests.device", *sys.argv[1:]], os.environ | {"PYTHONPATH": path})


def table(part: Part, ending: str, directory: Path) -> str:
    """Return the rows of a part in Markdown."""
    out = directory / f"{part.module}.json"
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"### {part.title}", "", f"Ended: {ending}.", ""]
    if rows:
        lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(number(row.get(name, "")) for name in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
