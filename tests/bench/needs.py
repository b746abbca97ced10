"""Print the requirements of an installed package that this environment lacks, one a line, ready for pip.

Packages of torch's family are left out: a package installed without its requirements names one build of torch alone,
and text generation runs without its sisters. setuptools would be needed to build it, and it is built.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = ("torch", "setuptools")


def unmet(package: str) -> Iterator[str]:
    """Yield each unmet requirement of `package`, without its marker."""
    for line in requires(package) or ():
        need = Requirement(line)
        applies = need.marker is None or need.marker.evaluate({"extra": ""})
        if applies and not need.name.startswith(LEFT_OUT) and not _met(need):
            need.marker = None
            yield str(need)


def _met(need: Requirement) -> bool:
    try:
        return need.specifier.contains(version(need.name))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    for requirement in unmet(sys.argv[1]):
        print(requirement)
