"""Command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

import contextlib
import io
import os
import signal
import sys
import threading
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import NoReturn

import rekindle
from rekindle.cli import demo, follow, info, lm_eval, precompile, replicas, serve
from rekindle.cli.cache import command as cache
from rekindle.cli.chat import command as chat
from rekindle.cli.generate import command as generate
from rekindle.cli.models import command as models
from rekindle.cli.parser import CommandParser, add_command
from rekindle.core.errors import RekindleError

DESCRIPTION = """\
LLM inference in JAX. `rekindle chat` opens a small model and chats with it.
`rekindle COMMAND --help` has the arguments of a command, and examples.
The Python API can do more."""
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
    parser = _parser()
    parser.check_command(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(argv)
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


def _parser() -> CommandParser:
    parser = CommandParser(prog="rekindle", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"rekindle {rekindle.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = partial(add_command, commands)
    chat.add_arguments(command("chat", "chat with a model; the line /help lists the commands of a chat", chat.EXAMPLES))
    generate.add_arguments(
        command("generate", "generate from one prompt, and stream the text to stdout", generate.EXAMPLES)
    )
    demo.add_arguments(command("demo", "answer a few questions with the default model"))
    models.add_arguments(
        command("models", "list the model families, and the sizes that fit this machine", models.EXAMPLES)
    )
    summary = "show versions, devices and the cache; with MODEL, its architecture and memory needs"
    info.add_arguments(command("info", summary, info.EXAMPLES))
    summary = "serve clients of OpenAI's API over HTTP until Ctrl-C, and print the base_url"
    serve.add_arguments(command("serve", summary, serve.EXAMPLES))
    summary = "compile a model's programs in advance, for this machine or for another"
    precompile.add_arguments(command("precompile", summary, precompile.EXAMPLES))
    summary = "list, measure, explain, verify, prune or clear the cache directory"
    cache.add_arguments(command("cache", summary, cache.EXAMPLES))
    follow.add_arguments(command("follow", "serve sessions that another process opens with hosts=", follow.EXAMPLES))
    summary = "list or stop the replicas of a Ray cluster, including kept ones"
    replicas.add_arguments(command("replicas", summary))
    summary = "run lm-eval's tasks (--model rekindle)"
    lm_eval.add_arguments(command("lm-eval", summary, prefix_chars=lm_eval.NO_PREFIX, add_help=False))
    parser.names = commands.choices
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
