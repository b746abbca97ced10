"""The suites: the places of their tests, and the stand-ins for their fixtures."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from tests.peers import causes, llama_files, vllm_files
from tests.peers.causes import Causes

HERE = Path(__file__).parent
A_NAME = re.compile(r'^(?:MODEL_NAME|MODEL|model_name) = ("[^"]+")$', re.MULTILINE)
"""The line of a model's name in a module of vLLM's tests."""
NAMES = re.compile(r'"(?:(?:[A-Z][\w.-]*|openai-community)/[\w.-]+|claude-[\w.-]+)"(?=[,\]\)])')
"""Models of the hub and of Anthropic in vLLM's tests."""
ANY_NAME = re.compile(r'(model=|"model": )"[^"]+"')
"""A model in a request of llama.cpp's tests; their server takes any name."""


@dataclass(frozen=True)
class Copied:
    """A copy of a project's tests.

    Attributes:
        root: the folder of their imports.
        start: the working directory of pytest.
    """

    root: Path
    start: Path


@dataclass(frozen=True)
class Suite:
    """The server tests of a project.

    Attributes:
        name: the project.
        tests: the files about the API, without files about a model or a private route alone.
        options: further options of pytest.
        copy: copies the tests of a checkout into a folder, for a name of the model.
        environment: returns the environment for an address and a name of the model.
        unlisted: yields the files of a checkout that start a server, and neither run nor are left out with a reason.
        causes: the causes of failures.
    """

    name: str
    tests: Sequence[str]
    options: Sequence[str]
    copy: Callable[[Path, Path, str], Copied]
    environment: Callable[[str, str], Mapping[str, str]]
    unlisted: Callable[[Path], Iterable[str]]
    causes: Causes

    def present(self, copy: Copied) -> Iterator[str]:
        """Yield the files of the suite in a copy; pytest runs nothing for a list with a file of another version."""
        return (name for name in self.tests if (copy.start / name).exists())


def copy_vllm(checkout: Path, place: Path, model: str) -> Copied:
    """Copy vLLM's entrypoint tests, beside a stand-in for `vllm` and `tests.utils`."""
    shutil.copytree(checkout / "tests" / "entrypoints", place / "tests" / "entrypoints")
    (place / "tests" / "__init__.py").touch()
    shutil.copy(HERE / "vllm_utils.py", place / "tests" / "utils.py")
    for path in (place / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for name in A_NAME.findall(text):
            text = text.replace(name, f'"{model}"')
        path.write_text(NAMES.sub(f'"{model}"', text), encoding="utf-8")
    return Copied(place, place)


def copy_llama(checkout: Path, place: Path, model: str) -> Copied:
    """Copy llama.cpp's server tests. They know servers that others started."""
    shutil.copytree(checkout / "tools" / "server" / "tests", place)
    for path in place.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(ANY_NAME.sub(rf'\1"{model}"', text), encoding="utf-8")
    return Copied(place, place)


def llama_environment(url: str, model: str) -> Mapping[str, str]:
    """Return the variables that name a server to llama.cpp's tests."""
    return {"DEBUG_EXTERNAL": "1", "PORT": str(urlsplit(url).port)}


VLLM = Suite(
    "vLLM",
    tuple(f"{vllm_files.ROOT}/{name}" for name in (*vllm_files.RUN, *vllm_files.OTHERS)),
    ("-o", "asyncio_mode=auto"),
    copy_vllm,
    lambda url, model: {"PEERS_URL": url, "PEERS_MODEL": model},
    vllm_files.unlisted,
    causes.VLLM,
)
LLAMA = Suite(
    "llama.cpp",
    tuple(f"unit/{name}" for name in llama_files.RUN),
    (),
    copy_llama,
    llama_environment,
    llama_files.unlisted,
    causes.LLAMA,
)
SUITES: Mapping[str, Suite] = {
    "vllm": VLLM,
    "vllm-pictures": replace(VLLM, tests=tuple(f"{vllm_files.ROOT}/{name}" for name in vllm_files.PICTURES)),
    "vllm-keys": replace(VLLM, tests=tuple(f"{vllm_files.ROOT}/{name}" for name in vllm_files.KEYS)),
    "llama.cpp": LLAMA,
    "llama.cpp-pictures": replace(LLAMA, tests=tuple(f"unit/{name}" for name in llama_files.PICTURES)),
    "llama.cpp-keys": replace(LLAMA, tests=tuple(f"unit/{name}" for name in llama_files.KEYS)),
}
"""The suites by name. Some files need a model that sees, or a server with a key: a run of their own."""
