"""The packages of notebook services, and what `pip install rekindle-llm` over them changes: nothing.

Each list beside this file has the packages of one service that Rekindle, a kernel or JAX use, as published on the day
in its name. Its first lines tell the source, its Python, the extras that change nothing either, and what is added. A
new dependency of Rekindle that is in the source too is to be copied from there.

`python -m tests.colab.packages make` makes the environment of `make test-colab`: Colab's list for a CPU, with Rekindle
installed over it as people do. `python -m tests.colab.packages check` does so dry, over that list by Colab's own pip,
and over all lists by uv; it fails if a package would change.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from tests.documents import ROOT
from tests.first_minutes.environments import COLAB_LIST, uv

HERE: Final = Path(__file__).parent
FOLDER: Final = ROOT / ".venv-colab"
"""The environment of `make test-colab`."""
LIBTPU: Final = FOLDER / "libtpu"
"""The folder with the libtpu that jax 0.7.2 asks for. It is on no path by itself, or JAX would look for a TPU."""
PROJECT: Final = ROOT / "pyproject.toml"


@dataclass(frozen=True, slots=True)
class Image:
    """One list.

    Attributes:
        path: its file.
        python: the version of its Python.
        extras: the extras of Rekindle that change no package either.
        adds: the packages that Rekindle adds without extras.
        pins: the versions, by normalized name.
    """

    path: Path
    python: str
    extras: tuple[str, ...]
    adds: tuple[str, ...]
    pins: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> "Image":
        """Read a list."""
        text = path.read_text(encoding="utf-8")
        facts = dict(re.findall(r"^# (Python|Extras|Adds): (.*)$", text, re.M))
        return cls(path, facts["Python"], _words(facts["Extras"]), _words(facts["Adds"]), pins(text.splitlines()))


class Changed(Exception):
    """An installation changes packages of a list; the message says which."""


def images() -> list[Image]:
    """Return all lists."""
    return [Image.read(path) for path in sorted(HERE.glob("*.txt"))]


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Return the versions in lines such as `numpy==2.1.3`, by normalized name."""
    found = (re.match(r"([\w.-]+)(?:\[.*\])?==([^\s;]+)", line) for line in lines)
    return {_normal(match[1]): match[2] for match in found if match}


def make(folder: Path, python: str) -> None:
    """Make an environment of Colab's list alone, and then install Rekindle into it, with no word of the list."""
    interpreter = str(folder / "bin" / "python")
    for command in (
        ["venv", "--quiet", "--clear", "--python", python, str(folder)],
        ["pip", "install", "--quiet", "--python", interpreter, "--no-deps", "--requirement", str(COLAB_LIST)],
        ["pip", "install", "--quiet", "--python", interpreter, "--editable", str(ROOT)],
        ["pip", "install", "--quiet", "--python", interpreter, "trio"],  # some of the notebooks use it
        ["pip", "install", "--quiet", "--python", interpreter, "--no-deps", "--target", str(LIBTPU), "libtpu==0.0.23"],
    ):
        subprocess.run([uv(), *command], check=True)
    subprocess.run([interpreter, "-m", "rekindle_kernels.cpu.build"], cwd=ROOT, check=False)  # it says why it cannot


def changed_by(image: Image, installed: Mapping[str, str]) -> dict[str, str]:
    """Return the packages that an installation has added to a list.

    Args:
        image: the list.
        installed: the versions that are, or would be, there afterwards.

    Raises:
        Changed: it has replaced others.
    """
    replaced = [
        f"{name} {image.pins[name]} by {version}"
        for name, version in installed.items()
        if image.pins.get(name, version) != version
    ]
    if replaced:
        raise Changed(f"{image.path.stem}: {len(replaced)} packages changed: {', '.join(replaced)}")
    return {name: version for name, version in installed.items() if name not in image.pins}


def by_pip(image: Image, folder: Path) -> dict[str, str]:
    """Return what pip would install over a list, from the environment of that list; nothing is installed."""
    requirements = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    with tempfile.TemporaryDirectory(prefix="rekindle-colab-") as name:
        bare, report = Path(name) / "env", Path(name) / "report.json"
        _copy_of_names(image, folder, bare)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        command = [*pip, "--python", str(bare / "bin" / "python"), "install", "--dry-run", "--quiet"]
        subprocess.run([*command, "--report", str(report), *requirements], check=True)
        chosen: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {_normal(each["metadata"]["name"]): each["metadata"]["version"] for each in chosen}


def _copy_of_names(image: Image, folder: Path, bare: Path) -> None:
    """Make an environment with no more than the names, versions and requirements of a list's packages."""
    subprocess.run([uv(), "venv", "--quiet", "--python", str(folder / "bin" / "python"), str(bare)], check=True)
    (target,) = bare.glob("lib/python*/site-packages")
    for facts in folder.glob("lib/python*/site-packages/*.dist-info"):
        if _normal(facts.name.partition("-")[0]) in image.pins:
            (target / facts.name).symlink_to(facts)


def by_uv(image: Image, extras: Iterable[str] = ()) -> dict[str, str]:
    """Return the closure of Rekindle's requirements where all packages of a list stay as they are.

    Raises:
        Changed: there is none; the message is uv's.
    """
    options = [word for extra in extras for word in ("--extra", extra)]
    command = [uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", image.python]
    ended = subprocess.run(
        [*command, *options, "--constraint", str(image.path), str(PROJECT)], capture_output=True, text=True
    )
    if ended.returncode:
        raise Changed(f"{image.path.stem}: {ended.stderr.strip()}")
    return pins(ended.stdout.splitlines())


def check(folder: Path) -> None:
    """Print what installations over the lists would change.

    Raises:
        Changed: a package would change, or one is added that its list does not name.
    """
    colab = Image.read(COLAB_LIST)
    added = changed_by(colab, by_pip(colab, folder))
    print(f"{COLAB_LIST.stem}, by pip: 0 packages changed of {len(colab.pins)}; added: {_listed(added)}", flush=True)
    there = {_normal(each.name): each.version for each in distributions(path=list(map(str, folder.glob("lib/*/*"))))}
    changed_by(colab, there)
    for image in images():
        added = changed_by(image, by_uv(image))
        if set(added) != set(image.adds):
            raise Changed(f"{image.path.stem}: {_listed(added)} are added: copy from its source those that are there")
        changed_by(image, by_uv(image, image.extras))
        extras = f"[{','.join(image.extras)}]"
        print(f"{image.path.stem}: 0 packages changed, nor by {extras}; added: {_listed(added)}", flush=True)


def _listed(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items())) or "nothing"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split(", "))


def main() -> None:
    """Run the verb of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["make", "check"])
    parser.add_argument("--python", default="3.13", help="of a new environment (default: %(default)s, as uv finds it)")
    options = parser.parse_args()
    try:
        make(FOLDER, options.python) if options.verb == "make" else check(FOLDER)
    except Changed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
