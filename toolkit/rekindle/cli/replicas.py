"""`python -m rekindle replicas ls` and `stop`: the replicas of a Ray cluster, and ending them."""

import sys
import time
from argparse import ArgumentParser, Namespace

from rekindle.cli.units import ago
from rekindle.core.errors import ConfigError
from rekindle.core.markup import quantity
from rekindle.replicas import keeping


def add_arguments(parser: ArgumentParser) -> None:
    """Add the commands and their arguments."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    lists = commands.add_parser("ls", help="each replica: its name, its model, what it has to do, where and since when")
    lists.set_defaults(run=ls)
    stops = commands.add_parser("stop", help="end replicas; their cached prefixes are written to disk first")
    stops.add_argument("names", metavar="NAME", nargs="*", help="of a replica, or the beginning of its name")
    stops.add_argument("--all", action="store_true", help="all of them")
    stops.set_defaults(run=stop)
    for each in (lists, stops):
        each.add_argument("--address", help="of the cluster, as ray.init takes it (RAY_ADDRESS, else the one here)")


def ls(arguments: Namespace) -> int:
    """Print what each replica is and does."""
    found = list(keeping.replicas(arguments.address))
    for each in found:
        print(*_lines(each), sep="\n")
    if not found:
        print("There are no replicas; rekindle.open(model, replicas=rekindle.Ray(2, keep=True)) starts some.")
    return 0


def stop(arguments: Namespace) -> int:
    """Stop replicas by their names, or all of them; return 1 if a name fits none.

    Raises:
        ConfigError: no name is given, or names beside --all.
    """
    if bool(arguments.names) == arguments.all:
        raise ConfigError("give the names of replicas to stop, as `rekindle replicas ls` prints them, or --all")
    there = [each.name for each in keeping.replicas(arguments.address)]
    status = 0
    for asked in arguments.names or [""]:
        names = [asked] if asked in there else [name for name in there if name.startswith(asked)]
        if not names and asked:
            print(f"rekindle: no replica is named {asked!r}, and no name begins so", file=sys.stderr)
            status = 1
        for name in names:
            if keeping.stop(name):
                print(f"stopped {name}")
    return status


def _lines(each: keeping.Kept) -> list[str]:
    about = each.about
    if about is None:
        return [each.name, f"  {each.trouble}"]
    now, stuck = about.status.scheduler, about.status.stuck
    work = [quantity(about.sessions, "session"), f"{now.running} running", f"{now.waiting} waiting"]
    place = f"{about.deployment.dtype} on {about.deployment}, process {about.process} of {about.host}"
    return [
        each.name,
        f"  {about.model}, {place}, started {ago(time.time() - about.since)}",
        f"  {', '.join(filter(None, [*work, stuck]))}",
    ]
