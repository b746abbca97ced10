"""`python -m rekindle follow`: its arguments."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from rekindle.cli.starting import deferred
from rekindle.hosts.address import LISTEN

EXAMPLES: Final = ("rekindle follow leader.example.org:7468", "rekindle follow 10.0.0.1:7468 --index 2")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("address", metavar="ADDRESS", help=f"where the leader listens: host:port, such as {LISTEN}")
    parser.add_argument(
        "--index", type=int, metavar="N", help="this process's number, from 1 on, a key of stored programs (next free)"
    )
    parser.add_argument("--model", help="the model's name or path on this machine, if it differs from the leader's")
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        type=Path,
        help="a file with the secret (REKINDLE_SECRET, else the one in the cache directory)",
    )
    parser.set_defaults(run=deferred("rekindle.cli.follow", "follow"))
