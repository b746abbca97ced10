"""`python -m rekindle precompile`: its arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred

EXAMPLES: Final = ("rekindle precompile owner/name", "rekindle precompile owner/name --target cuda:h100")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    requirements.add_arguments(parser)
    parser.usage = "%(prog)s [OPTION ...] MODEL"
    parser.set_defaults(run=deferred("rekindle.cli.precompile", "precompile"))
