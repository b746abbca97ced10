"""`python -m rekindle cache`: its commands and their arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred
from rekindle.cli.units import parse_size

STORES: Final = ("programs", "snapshots", "images", "weights")
"""The stores with a bound, in the order of `rekindle.cli.cache.stores.STORES`."""
MODELS: Final = "models"
HISTORY: Final = "history"
ALL: Final = "all"
EXAMPLES: Final = (
    "rekindle cache ls",
    "rekindle cache explain smollm2-135m-instruct",
    "rekindle cache prune --max-bytes 5G",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the commands and their arguments."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, text: str) -> ArgumentParser:
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.set_defaults(run=deferred("rekindle.cli.cache.command", "cache"), command=name)
        return parser

    lists = command("ls", "list models, programs, snapshots, images, weights, conversations")
    lists.add_argument("--long", action="store_true", help="each program, and whole digests")
    command("size", "print the size of each directory, and of the whole cache")
    prunes = command(
        "prune", "remove the least recently used entries, leftovers of killed processes, and old conversations"
    )
    prunes.set_defaults(refuse=prunes.error)
    for name, scope in (("max", "of all four together"), *((store, f"of {store}") for store in STORES)):
        prunes.add_argument(
            f"--{name}-bytes",
            type=parse_size,
            metavar="SIZE",
            help=f"keep at most this much {scope}, such as 500M, 2G, 1.5GiB",
        )
    clears = command(
        "clear", "remove all programs, snapshots, images or weights, or all of these; or the history of chats"
    )
    clears.add_argument(
        "what",
        nargs="?",
        default=ALL,
        choices=(*STORES, ALL, MODELS, HISTORY),
        help="all (the default) means programs, snapshots, images and converted weights; downloaded models and the "
        "history of chats are removed only by name",
    )
    clears.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    explains = command("explain", "list a model's stored programs and pages, and the reasons for missing ones")
    requirements.add_arguments(explains)
    explains.add_argument("--long", action="store_true", help="whole values of the differences")
    verifies = command("verify", "read all programs, snapshots, images and weights, and list the damaged ones")
    verifies.add_argument("--drop", action="store_true", help="remove the damaged entries")
