"""`python -m rekindle info`: its arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred

EXAMPLES: Final = ("rekindle info", "rekindle info owner/name", "rekindle info owner/name --target tpu:v5e:2x4")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    requirements.add_model(parser, nargs="?")
    requirements.add_devices(parser)
    parser.set_defaults(run=deferred("rekindle.cli.info", "info"))
