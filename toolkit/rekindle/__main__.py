"""Command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import Any, Final, NoReturn

import rekindle
from rekindle.cli import starting
from rekindle.cli.parser import CommandParser, LineFormatter, add_command
from rekindle.core.concurrency.collector import collector_paused
from rekindle.core.errors import RekindleError

DESCRIPTION = """\
LLM inference in JAX. `rekindle chat` opens a small model and chats with it.
`rekindle COMMAND --help` has the arguments of a command, and examples.
The Python API can do more."""
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("chat.command", "chat with a model; the line /help lists the commands of a chat"),
    "generate": ("generate.command", "generate from one prompt, and stream the text to stdout"),
    "batch": ("batch.command", "answer a file of OpenAI's Batch API into another file, and go on after an interrupt"),
    "demo": ("arguments.demo", "answer a few questions with the default model"),
    "models": ("arguments.models", "list the model families, and the sizes that fit this machine"),
    "info": ("arguments.info", "show versions, devices and the cache; with MODEL, its architecture and memory needs"),
    "serve": ("arguments.serve", "serve clients of OpenAI, Anthropic and Ollama over HTTP until Ctrl-C"),
    "quantize": ("arguments.quantize", "write a model with 4 or 8 bits a weight, as GGUF or safetensors"),
    "precompile": ("arguments.precompile", "compile a model's programs in advance, for this machine or for another"),
    "cache": ("arguments.cache", "list, measure, explain, verify, prune or clear the cache directory"),
    "follow": ("arguments.follow", "serve sessions that another process opens with hosts="),
    "replicas": ("arguments.replicas", "list or stop the replicas of a Ray cluster, including kept ones"),
    "lm-eval": ("lm_eval", "run lm-eval's tasks (--model rekindle)"),
}
"""The module in `cli/` and the summary of each command; a command alone imports its module."""
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
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        warnings.showwarning = _show_warning
    parser = _parser(*words[:1])
    parser.check_command(words)
    arguments = parser.parse(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write characters that the terminal's encoding lacks
    try:
        status: int = arguments.run(arguments)
        print(end="", flush=True)
        return status
    except RekindleError as error:
        _note(str(error))
        return 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)
        return _leave(INTERRUPTED) if argv is None else INTERRUPTED
    except BrokenPipeError:
        return _leave(BROKEN_PIPE) if argv is None else BROKEN_PIPE


def _parser(name: str | None = None) -> CommandParser:
    """Return the parser, with the arguments of one command; others have a name and a summary alone."""
    parser = CommandParser(prog="rekindle", description=DESCRIPTION, formatter_class=LineFormatter)
    parser.add_argument("--version", action="version", version=f"rekindle {rekindle.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, (module, summary) in COMMANDS.items():
        if command != name:
            add_command(commands, command, summary)
            continue
        with starting.announced(), collector_paused():
            content: Any = import_module(f"rekindle.cli.{module}")
        examples, options = getattr(content, "EXAMPLES", ()), getattr(content, "PARSER_OPTIONS", {})
        content.add_arguments(add_command(commands, command, summary, examples, **options))
    parser.names = commands.choices
    return parser


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """Print a warning without the line of code, which is one of this package."""
    _note(str(message))


def _note(text: str) -> None:
    from rekindle.cli.chat.wrapping import print_note  # no help and no version needs it

    print_note(f"rekindle: {text}")


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
