"""Command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

import contextlib
import io
import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from time import monotonic
from typing import NoReturn

import rekindle
from rekindle.cli import follow, generate, lm_eval, replicas, requirements, serve
from rekindle.cli.cache import command as cache
from rekindle.cli.demo import demo
from rekindle.cli.info import info
from rekindle.cli.models import command as models
from rekindle.cli.precompile import precompile
from rekindle.core.checkpoints.embedded import NAME
from rekindle.core.errors import RekindleError

INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE, absent on some systems
GRACE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; None reads the process's arguments, and lets an interrupt end the process.

    Returns:
        The exit status: 0 for success, 1 for a `RekindleError`, 130 for an interrupt, 141 for a closed pipe.

    Raises:
        SystemExit: from argparse, with 0 for --help and --version, and 2 for invalid arguments.
    """
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write characters that the terminal's encoding lacks
    try:
        status: int = arguments.run(arguments)
        print(end="", flush=True)
        return status
    except RekindleError as error:
        print(f"rekindle: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        return _leave(INTERRUPTED) if argv is None else INTERRUPTED
    except BrokenPipeError:
        return _leave(BROKEN_PIPE) if argv is None else BROKEN_PIPE


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="rekindle", description="LLM inference in JAX. The Python API can do more.")
    parser.add_argument("--version", action="version", version=f"rekindle {rekindle.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser("demo", help="answer a few questions with the default model")
    command.add_argument("--model", default=NAME, help="another model with a chat template")
    command.set_defaults(run=demo)
    command = commands.add_parser("generate", help="generate from one prompt, streaming to stdout")
    generate.add_arguments(command)
    command.set_defaults(run=generate.generate)
    command = commands.add_parser(
        "info", help="show versions, devices and the cache; with MODEL, its architecture and memory needs"
    )
    requirements.add_model(command, nargs="?")
    requirements.add_devices(command)
    command.set_defaults(run=info)
    summary = "list the model families, and the sizes that fit this machine"
    command = commands.add_parser("models", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    models.add_arguments(command)
    command.set_defaults(run=models.models)
    command = commands.add_parser(
        "precompile", help="compile a model's programs in advance, for this machine or for another"
    )
    requirements.add_arguments(command)
    command.set_defaults(run=precompile)
    summary = "serve clients of OpenAI's API over HTTP"
    command = commands.add_parser("serve", help=summary, description=f"{summary}, until Ctrl-C; prints the base_url")
    serve.add_arguments(command)
    command.set_defaults(run=serve.serve)
    command = commands.add_parser("follow", help="serve sessions that another process opens with hosts=")
    follow.add_arguments(command)
    command.set_defaults(run=follow.follow)
    command = commands.add_parser("replicas", help="list or stop the replicas of a Ray cluster, including kept ones")
    replicas.add_arguments(command)
    command = commands.add_parser("cache", help="list, measure, explain, verify, prune or clear the cache directory")
    cache.add_arguments(command)
    command = commands.add_parser(
        "lm-eval", help="run lm-eval's tasks (--model rekindle)", prefix_chars=lm_eval.NO_PREFIX, add_help=False
    )
    lm_eval.add_arguments(command)
    command.set_defaults(run=lm_eval.lm_eval)
    return parser


def _leave(status: int) -> NoReturn:
    """Wait for the engine's thread to delete partial downloads, and exit without waiting for a compiler."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline = monotonic() + GRACE_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith("rekindle-"):
            thread.join(max(0.0, deadline - monotonic()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
