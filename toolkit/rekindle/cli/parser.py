"""Parsers of the command line: help with examples, and hints about misspelt commands."""

import sys
import textwrap
from argparse import ArgumentParser, HelpFormatter, Namespace, _SubParsersAction
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn, Protocol

from rekindle.core.keywords import likely

_DOWNLOADS: Final = "a model of the hub is downloaded when it is opened: rekindle chat owner/name"
_ELSEWHERE: Final = {
    "run": "did you mean chat?",
    "list": "did you mean models, or cache ls?",
    "help": "did you mean --help?",
    "pull": _DOWNLOADS,
    "download": _DOWNLOADS,
    "bench": "in Python, session.bench() measures the speed of this machine",
}
"""Hints for commands of other tools."""
_DEVICES: Final = ("device", "gpu", "cpu", "tpu", "cuda")
_MESH: Final = ("tensor_parallel_size", "tensor", "tp", "data_parallel_size")
MISUSED = 2
"""Exit status for invalid arguments, as from argparse."""


def filled(text: str, width: int) -> str:
    """Return a text with its lines broken between words; indented lines, which are commands, stay whole."""
    lines = text.splitlines()
    return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


class LineFormatter(HelpFormatter):
    """A formatter of help that keeps the lines of descriptions and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return filled(text, width)


class Commands(Protocol):
    """Commands of a parser, from `ArgumentParser.add_subparsers`."""

    choices: Any

    def add_parser(self, name: str, **options: Any) -> Any: ...


def add_command(
    commands: Commands, name: str, summary: str, examples: Sequence[str] = (), **options: Any
) -> ArgumentParser:
    """Add a command, with a help of its summary and of examples.

    Args:
        commands: the commands of the parser.
        name: the name of the command.
        summary: its purpose, without a capital letter and a full stop.
        examples: complete command lines.
        **options: further options of argparse.
    """
    epilog = "\n  ".join(("examples:", *examples)) if examples else None
    description = f"{summary[0].upper()}{summary[1:]}."
    parser: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=LineFormatter,
        **options,
    )
    return parser


class CommandParser(ArgumentParser):
    """A parser with hints about misspelt commands and options.

    Attributes:
        names: the names of its commands.
    """

    names: Collection[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with the usage and a message."""
        from rekindle.cli.chat.wrapping import print_note

        self.print_usage(sys.stderr)
        print_note(f"{self.prog}: error: {message}")
        self.exit(MISUSED)

    def check_command(self, arguments: Sequence[str]) -> None:
        """Exit with the help if there are no arguments, and with a hint if the first one is no command."""
        if not arguments:
            self.print_help(sys.stderr)
            self.exit(MISUSED)
        name = arguments[0]
        if name.startswith("--") and name not in self._option_string_actions:
            self.error(_unknown(self, name))
        if not name.startswith("-") and name not in self.names:
            hint = _ELSEWHERE.get(name) or likely(name, self.names) or f"the commands are {', '.join(self.names)}"
            self.error(f"no command {name!r}; {hint}")

    def parse(self, words: Sequence[str]) -> Namespace:
        """Return the arguments; exit with the usage of the command, and a hint, if some are unknown.

        A command that has commands itself, and got none, exits with its help.
        """
        command = _command_of(self, words)
        if (
            len(words) == 1
            and command is not self
            and any(isinstance(each, _SubParsersAction) for each in command._actions)
        ):
            command.print_help(sys.stderr)
            self.exit(MISUSED)
        arguments, unknown = self.parse_known_args(words)
        if unknown:
            options = [word for word in unknown if word.startswith("-")]  # the others may be their values
            command.error("; ".join(_unknown(command, word) for word in options or unknown))
        return arguments


def _command_of(parser: ArgumentParser, words: Sequence[str]) -> ArgumentParser:
    """Return the parser of the innermost command among the words."""
    for word in words:
        commands = next((each.choices for each in parser._actions if isinstance(each, _SubParsersAction)), {})
        parser = commands.get(word, parser)
    return parser


def _unknown(parser: ArgumentParser, word: str) -> str:
    """Return the message about an unknown argument, with the closest option of the command."""
    if not word.startswith("-"):
        return f"unexpected argument {word!r}: a text with spaces needs quotes"
    options = {option.lstrip("-").replace("-", "_"): option for option in parser._option_string_actions}
    name = word.partition("=")[0].lstrip("-").replace("-", "_")
    if name in _MESH and "mesh" in options:
        return f"no option {word!r}; here it is --mesh, as in --mesh tensor=2"
    if name in _DEVICES:
        return f"no option {word!r}; jax chooses the device: set JAX_PLATFORMS to cpu, cuda or tpu for another one"
    hint = likely(name, options) if name not in options else f"did you mean {name}?"
    for each in options if hint else ():
        if hint.removesuffix("?").endswith(f" {each}"):
            return f"no option {word!r}; {hint.replace(f' {each}', f' {options[each]}')}"
    return f"no option {word!r}"
