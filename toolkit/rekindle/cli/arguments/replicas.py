"""`python -m rekindle replicas ls` and `stop`: their arguments."""

from argparse import ArgumentParser

from rekindle.cli.starting import deferred


def add_arguments(parser: ArgumentParser) -> None:
    """Add the commands and their arguments."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    lists = commands.add_parser("ls", help="list the replicas: name, model, load, place and age")
    lists.set_defaults(run=deferred("rekindle.cli.replicas", "ls"))
    stops = commands.add_parser("stop", help="stop replicas, after writing their cached prefixes to disk")
    stops.add_argument("names", metavar="NAME", nargs="*", help="the name of a replica, or its beginning")
    stops.add_argument("--all", action="store_true", help="stop all replicas")
    stops.set_defaults(run=deferred("rekindle.cli.replicas", "stop"))
    for each in (lists, stops):
        each.add_argument("--address", help="the cluster, as in ray.init (RAY_ADDRESS, else the local one)")
