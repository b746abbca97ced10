"""The commands `replicas ls` and `replicas stop`: list and stop the replicas of a Ray cluster."""

import sys
import time
from argparse import Namespace

from rekindle.core.errors import ConfigError
from rekindle.core.words import ago, quantity
from rekindle.replicas import keeping


def ls(arguments: Namespace) -> int:
    """Print the state of each replica."""
    replicas = list(keeping.replicas(arguments.address))
    for each in replicas:
        print(*_lines(each), sep="\n")
    if not replicas:
        print("There are no replicas; rekindle.open(model, replicas=rekindle.Ray(2, keep=True)) starts some.")
    return 0


def stop(arguments: Namespace) -> int:
    """Stop replicas by name, or all of them; return 1 if a name matches no replica.

    Raises:
        ConfigError: there are neither names nor --all, or both.
    """
    if bool(arguments.names) == arguments.all:
        raise ConfigError("give the names of replicas to stop, as `rekindle replicas ls` prints them, or --all")
    available = [each.name for each in keeping.replicas(arguments.address)]
    status = 0
    for prefix in arguments.names or [""]:
        names = [prefix] if prefix in available else [name for name in available if name.startswith(prefix)]
        if not names and prefix:
            print(f"rekindle: no replica has the name {prefix!r} or a name with this beginning", file=sys.stderr)
            status = 1
        for name in names:
            if keeping.stop(name):
                print(f"stopped {name}")
    return status


def _lines(each: keeping.ReplicaInfo) -> list[str]:
    about = each.about
    if about is None:
        return [each.name, f"  {each.trouble}"]
    now, stuck = about.status.scheduler, about.status.stuck
    work = [quantity(about.sessions, "session"), f"{now.running} running", f"{now.waiting} waiting"]
    place = f"{about.deployment.dtypes} on {about.deployment}, process {about.process} of {about.host}"
    return [
        each.name,
        f"  {about.model}, {place}, started {ago(time.time() - about.since)}",
        f"  {', '.join(filter(None, [*work, stuck]))}",
    ]
