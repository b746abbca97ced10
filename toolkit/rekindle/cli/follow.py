"""`python -m rekindle follow`: follow the sessions of a leader process."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import jax

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.hosts.address import LISTEN, Address
from rekindle.hosts.following import follow as follow_leader

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
    parser.set_defaults(run=follow)


def follow(arguments: Namespace) -> int:
    """Follow the leader until it ends; exit with 1 and a reason on stderr if it ended by an error."""
    try:
        follow_leader(
            Address.of(arguments.address),
            _say,
            _fail,
            secret=_secret(arguments.secret_file),
            index=arguments.index,
            model=arguments.model,
        )
        return _exit(0)
    except RekindleError as error:
        if not jax.distributed.is_initialized():
            raise
        print(f"rekindle: {error}", file=sys.stderr)
        return _exit(1)
    except KeyboardInterrupt:
        if not jax.distributed.is_initialized():
            raise
        return _exit(128 + signal.SIGINT)


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the secret cannot be read from {path} ({error.strerror})") from error


def _say(text: str) -> None:
    print(f"rekindle: {text}", flush=True)


def _fail(reason: str, status: int) -> None:
    print(f"rekindle: {reason}", file=sys.stderr)
    _exit(status)


def _exit(status: int) -> int:
    """Exit without jax's shutdown barrier, which would wait for processes already gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
