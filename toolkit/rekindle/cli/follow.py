"""The command `follow`: follow the sessions of a leader process."""

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path

import jax

from rekindle.core.errors import ConfigError, RekindleError
from rekindle.hosts.address import Address
from rekindle.hosts.following import follow as follow_leader


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
