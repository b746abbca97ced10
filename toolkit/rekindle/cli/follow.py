"""`python -m rekindle follow`: serve sessions that another process leads."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import jax

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.hosts.address import LISTEN, Address
from rekindle.hosts.following import follow as following


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("address", metavar="ADDRESS", help=f"where the leader listens: host:port, such as {LISTEN}")
    parser.add_argument(
        "--index", type=int, metavar="N", help="this process's number, from 1 on, for which programs are stored (next)"
    )
    parser.add_argument("--model", help="where the model is on this machine, if it is elsewhere than on the leader's")
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        type=Path,
        help="a file with the secret (REKINDLE_SECRET has it, else the cache directory)",
    )


def follow(arguments: Namespace) -> int:
    """Follow until the leader ends; return 1, after a line that says why, if that was not on purpose."""
    try:
        following(
            Address.of(arguments.address),
            _say,
            _gone,
            secret=_secret(arguments.secret_file),
            index=arguments.index,
            model=arguments.model,
        )
        return _left(0)
    except RekindleError as error:
        if not jax.distributed.is_initialized():
            raise
        print(f"rekindle: {error}", file=sys.stderr)
        return _left(1)
    except KeyboardInterrupt:
        if not jax.distributed.is_initialized():
            raise
        return _left(128 + signal.SIGINT)


def _secret(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the secret cannot be read from {path} ({error.strerror})") from error


def _say(text: str) -> None:
    print(f"rekindle: {text}", flush=True)


def _gone(why: str, status: int) -> None:
    print(f"rekindle: {why}", file=sys.stderr)
    _left(status)


def _left(status: int) -> int:
    """End the process without jax's farewell to the other processes, for which it would wait if they are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
