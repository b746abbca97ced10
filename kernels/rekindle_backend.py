"""Builds distributions as setuptools does, and wheels with the library of native kernels in them.

Such a wheel is for one platform and any Python. Where the library cannot be built, the wheel is for any platform: it
has the sources, and they are compiled where it is used first, if there is a compiler then.
"""

import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import _StaticPth, editable_wheel
from setuptools.command.egg_info import egg_info

from rekindle_kernels.cpu.build import BUNDLED, BuildFailed, build, compiler, signs_of_life

LIBRARY = Path("rekindle_kernels", "cpu", BUNDLED)
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
"""A Markdown link or picture with a path of the repository: its mark of a picture, its text and its path."""


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what a wheel is built with: for its headers, the oldest jaxlib that we support; later ones load it too."""
    required = build_meta.get_requires_for_build_wheel(config_settings)
    try:
        compiler()
    except BuildFailed:
        return required
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    (oldest,) = re.findall(r"'jax>=([\d.]+)'", str(project["dependencies"]))
    return [*required, f"jaxlib=={oldest}"]


class BuildPy(build_py):
    """Builds the library beside the modules, except in an editable installation, whose first use builds it."""

    def run(self) -> None:
        """See `setuptools.Command`."""
        super().run()
        if not self.editable_mode:
            library = Path(self.build_lib) / LIBRARY
            library.unlink(missing_ok=True)  # a former build may have left it
            try:
                with signs_of_life(1.0, beat):
                    build(library)
            except BuildFailed as error:
                warnings.warn(f"the wheel is without its C++ kernels: {error}", stacklevel=1)


def beat(seconds: float) -> None:
    """Print a line: at each line, pip turns the mark beside the name of the package."""
    sys.stdout.write(f"compiling the C++ kernels, {seconds:.0f} s\n")
    sys.stdout.flush()


class BdistWheel(bdist_wheel):
    """Marks a wheel that has the library as one of this platform."""

    def run(self) -> None:
        """See `setuptools.Command`."""
        self.run_command("build")
        if (Path(self.get_finalized_command("build").build_lib) / LIBRARY).exists():
            self.distribution.has_ext_modules = lambda: True  # the wheel's files go where those of a platform belong
            self.root_is_pure = False
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return (python, ABI, platform): there is no Python in the library."""
        return ("py3", "none", "any" if self.root_is_pure else super().get_tag()[2])


class EggInfo(egg_info):
    """Describes a distribution by a README whose links work outside the repository."""

    def run(self) -> None:
        """See `setuptools.Command`."""
        metadata = self.distribution.metadata
        source = metadata.project_urls["Source"]
        metadata.long_description = absolute_links(metadata.long_description, source, f"v{metadata.version}")
        super().run()


def absolute_links(text: str, source: str, tag: str) -> str:
    """Return a Markdown text whose paths are addresses on GitHub.

    Args:
        text: the text, with paths relative to the top of the repository.
        source: the address of the repository.
        tag: the version of the files.
    """
    raw = source.replace("https://github.com", "https://raw.githubusercontent.com")

    def absolute(link: re.Match[str]) -> str:
        mark, words, path = link.groups()
        return f"{mark}[{words}]({f'{raw}/{tag}' if mark else f'{source}/blob/{tag}'}/{path})"

    return RELATIVE_LINK.sub(absolute, text)


class EditableWheel(editable_wheel):
    """Puts the folders of the packages on the path.

    By setuptools' finder, a clone that is named rekindle would be imported instead by notebooks beside it.
    """

    def _select_strategy(self, name: str, tag: str, build_lib: Any) -> Any:
        return _StaticPth(self.distribution, name, [Path("toolkit"), Path("kernels")])
