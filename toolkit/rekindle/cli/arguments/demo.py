"""`python -m rekindle demo`: its arguments."""

from argparse import ArgumentParser

from rekindle.cli.starting import deferred
from rekindle.formats.checkpoints.embedded import NAME


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--model", default=NAME, help="another model with a chat template")
    parser.set_defaults(run=deferred("rekindle.cli.demo", "demo"))
