"""Checks a release before its publication: `make release-check`. Prints the results, and the steps left for a person.

Wheels of Linux are built by zig against the promised version of the C library. They are not for use: zig's runtime does
not tell the instruction sets of a CPU. A wheel by this machine's compiler is installed and run in a new environment.
Results are in build/release.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "build" / "release"
WHEELS: Final = OUT / "wheels"
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ARCHITECTURES: Final = ("x86_64", "aarch64")
GLIBC: Final = (2, 28)
"""The version of the C library of the wheels for Linux."""
PLATFORMS: Final = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin", "windows")
"""The platforms with wheels of all requirements; llguidance's need version 2.31 of the C library."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
SCHEMAS: Final = {
    "vendor.github-workflows": (".github/workflows/check.yml", ".github/workflows/release.yml"),
    "vendor.readthedocs": (".readthedocs.yaml",),
    "vendor.citation-file-format": ("CITATION.cff",),
}
PERSON: Final = (
    f"PyPI: a trusted publisher for {PROJECT['name']} (workflow release.yml, environment pypi)",
    f"GitHub: the repository {PROJECT['urls']['Source']}, with private reports of vulnerabilities",
    f"Read the Docs: the project {PROJECT['urls']['Documentation']}",
    "README.md: the paragraph that Rekindle is not published, and the commands of a checkout",
    "the wheel for macOS, which the workflow builds and runs",
    f"the tag v{PROJECT['version']}, which starts the workflow",
)


class Unfit(Exception):
    """A check failed; the message says how."""


class Unavailable(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a release: its name, and a function that returns its result in words."""

    name: str
    run: Callable[[], str]


def main() -> int:
    """Run all checks, or the ones of the command line; return the exit status."""
    shutil.rmtree(OUT, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    tasks = list(PERSON)
    failed = 0
    for check in CHECKS:
        if sys.argv[1:] and check.name not in sys.argv[1:]:
            continue
        sys.stdout.write(f"{check.name:14} ")
        sys.stdout.flush()  # a check can take minutes
        try:
            outcome = f"good    {check.run()}"
        except Unavailable as error:
            outcome = f"left    {error}"
            tasks.append(f"{check.name}: {error}")
        except Unfit as error:
            outcome = f"FAILED  {error}"
            failed += 1
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
    sys.stdout.write("\nLeft for a person:\n" + "".join(f"- {each}\n" for each in tasks))
    return min(failed, 1)


def versions() -> str:
    """Check the version in all files against pyproject.toml's, and its date in the changelog."""
    version = PROJECT["version"]
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        raise Unfit(f"CITATION.cff has another version than {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise Unavailable(f"CHANGELOG.md has no dated section {version}")
    return str(version)


def files() -> str:
    """Check the files that services read against their schemas, and the workflows for known weaknesses."""
    _run("validate-pyproject", "pyproject.toml")
    for schema, names in SCHEMAS.items():
        _run("check-jsonschema", "--builtin-schema", schema, *names)
    _run("zizmor", "--offline", "--no-progress", ".github")
    identifiers = _run("cibuildwheel", "--print-build-identifiers", "--platform", "linux", "--archs", "x86_64").split()
    if identifiers != ["cp311-manylinux_x86_64"]:
        raise Unfit(f"cibuildwheel would build {', '.join(identifiers)}")
    return f"pyproject.toml, {', '.join(name for names in SCHEMAS.values() for name in names)}"


def sources() -> str:
    """Build the source distribution, and check its files against the sources of a wheel."""
    _run("python", "-m", "build", "--sdist", "--installer", "uv", "--outdir", str(OUT))
    (file,) = OUT.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := {"kernels/rekindle_backend.py", "kernels/rekindle_kernels/cpu/source/isa.cc", "LICENSE"} - names:
        raise Unfit(f"{file.name} lacks {', '.join(sorted(missing))}")
    return file.name


def wheels() -> str:
    """Build the wheels of Linux, and the one for any platform; check the C library that they need."""
    for architecture in ARCHITECTURES:
        raw = OUT / architecture
        target = f"{architecture}-linux-gnu.{'.'.join(map(str, GLIBC))}"
        compiler = f"{sys.executable} -m ziglang c++ -target {target} -g0"
        _wheel(raw, {"CXX": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{architecture}"})
        (wheel,) = raw.glob("*.whl")
        # auditwheel takes the name of a platform for this architecture alone, and chooses it for any.
        _run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(WHEELS), str(wheel))
        (repaired,) = WHEELS.glob(f"*_{architecture}.whl")
        oldest = min(tuple(map(int, version)) for version in re.findall(r"manylinux_(\d+)_(\d+)_", repaired.name))
        if oldest > GLIBC:
            raise Unfit(f"{repaired.name} needs a newer C library than {'.'.join(map(str, GLIBC))}")
    _wheel(WHEELS, {"CXX": "none"})
    return ", ".join(wheel.name.partition("-py3-none-")[2] for wheel in sorted(WHEELS.glob("*.whl")))


def pages() -> str:
    """Check the description for PyPI, and its links there."""
    distributions = [str(path) for path in (*OUT.glob("*.tar.gz"), *WHEELS.glob("*.whl"))]
    if not distributions:
        raise Unavailable("there are no distributions; check wheels first")
    _run("twine", "check", "--strict", *distributions)
    for wheel in WHEELS.glob("*.whl"):
        description = str(_metadata(wheel).get_payload())
        if relative := re.findall(r"\]\((?!https?://|#)([^)]+)\)", description):
            raise Unfit(f"{wheel.name} has relative links: {', '.join(relative)}")
    return f"{len(distributions)} descriptions"


def trials() -> str:
    """Install wheels for this platform and for any in new environments, and run them without a compiler."""
    lines = []
    native = OUT / "native"
    _wheel(native, {})
    for kind, folder, pattern in (("cpu", native, "*-linux_*.whl"), ("xla", WHEELS, "*-any.whl")):
        matches = list(folder.glob(pattern))
        if not matches:
            raise Unavailable(f"there is no wheel {pattern}: this machine has no compiler, or wheels were not checked")
        environment = OUT / f"environment-{kind}"
        _run("uv", "venv", "--quiet", "--python", sys.executable, str(environment))
        python = environment / "bin" / "python"
        _run("uv", "pip", "install", "--quiet", "--python", str(python), str(matches[0]))
        lines.append(_output([str(python), str(ROOT / "tests" / "installed.py"), kind], cwd=OUT).splitlines()[-1])
    return "; ".join(line.partition(": ")[2] for line in lines)


def requirements() -> str:
    """Check the wheels of all requirements for each platform and Python."""
    source = OUT / "requirements.in"
    extras = PROJECT["optional-dependencies"]
    source.write_text("\n".join([*PROJECT["dependencies"], *extras["server"], *extras["notebook"]]), encoding="utf-8")
    options = ("--quiet", "--only-binary", ":all:", "--no-header", "--output-file", os.devnull)
    for platform in PLATFORMS:
        for version in PYTHONS:
            where = ("--python-platform", platform, "--python-version", version)
            _run("uv", "pip", "compile", *options, *where, str(source))
    return f"{len(PLATFORMS)} platforms, Python {', '.join(PYTHONS)}"


def vulnerabilities() -> str:
    """Check the lower bounds of all requirements for known vulnerabilities."""
    lower = OUT / "lower.txt"
    lower.write_text("\n".join(lower_bounds()), encoding="utf-8")
    command = [_tool("pip-audit"), "-r", str(lower), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        audited = json.loads(done.stdout)["dependencies"]
    except ValueError:
        raise Unavailable(f"pip-audit answered: {(done.stderr.strip() or 'nothing').splitlines()[-1]}") from None
    if skipped := [each["name"] for each in audited if "skip_reason" in each]:
        raise Unavailable(
            f"the database of vulnerabilities has no answer here for {len(skipped)} of {len(audited)} packages"
        )
    if faults := [f"{each['name']} {fault['id']}" for each in audited for fault in each["vulns"]]:
        raise Unfit(", ".join(faults))
    return f"{len(audited)} lower bounds"


def lower_bounds() -> Iterator[str]:
    """Yield each requirement of the package and its extras at its lower bound, such as `anyio==4.10`."""
    extras = PROJECT["optional-dependencies"]
    for requirement in (
        *PROJECT["dependencies"],
        *(one for extra in ("notebook", "ray", "server") for one in extras[extra]),
    ):
        name, _, bound = requirement.partition(">=")
        yield f"{name.partition('[')[0]}=={bound.partition(',')[0]}"


def _wheel(to: Path, variables: Mapping[str, str]) -> None:
    _run("python", "-m", "build", "--wheel", "--installer", "uv", "--outdir", str(to), variables=variables)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # the next wheel must not get this library


def _metadata(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _run(tool: str, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a command of this environment in the repository, and return its output."""
    return _output([_tool(tool), *arguments], variables=variables)


def _output(command: list[str], cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, **(variables or {})}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Unfit(f"{' '.join([Path(command[0]).name, *command[1:3]])} ... exits with {done.returncode}:\n{last}")
    return done.stdout


CHECKS: Final = tuple(
    Check(check.__name__, check)
    for check in (versions, files, sources, wheels, pages, trials, requirements, vulnerabilities)
)

if __name__ == "__main__":
    sys.exit(main())
