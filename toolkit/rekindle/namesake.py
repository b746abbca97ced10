"""A warning where another project with the same import name is installed into the same folder.

On PyPI, `rekindle` is a photo slideshow; Rekindle is `rekindle-llm`. Both install `rekindle/__init__.py` and a command
`rekindle`, so the later one replaces files of the earlier one.
"""

from pathlib import Path
from typing import Final
from warnings import warn

METADATA: Final = ("rekindle-*.dist-info", "rekindle-*.egg-info")
"""Folders with the metadata of the namesake, beside the package; those of Rekindle begin with `rekindle_llm-`."""
CURE: Final = "pip uninstall -y rekindle rekindle-llm && pip install rekindle-llm"


def warn_of_namesake(package: Path) -> None:
    """Warn if the distribution `rekindle` shares the folder of a package with Rekindle.

    Args:
        package: the folder of the imported package.
    """
    namesakes = sorted(path.stem for pattern in METADATA for path in package.parent.glob(pattern))
    if namesakes:
        warn(
            f"{package.parent} also has {', '.join(namesakes)}, another project with the import name rekindle, and "
            f"each of the two replaces files of the other. To keep only Rekindle: {CURE}",
            stacklevel=3,
        )
