"""Parsers of the command line: help with examples, and hints about misspelt commands."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from rekindle.core.errors import likely

MISUSED = 2
"""Exit status for invalid arguments, as from argparse."""


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
        formatter_class=RawDescriptionHelpFormatter,
        **options,
    )
    return parser


class CommandParser(ArgumentParser):
    """A parser with hints about misspelt commands.

    Attributes:
        names: the names of its commands.
    """

    names: Collection[str] = ()

    def check_command(self, arguments: Sequence[str]) -> None:
        """Exit with the help if there are no arguments, and with a hint if the first one is no command."""
        if not arguments:
            self.print_help(sys.stderr)
            self.exit(MISUSED)
        name = arguments[0]
        if not name.startswith("-") and name not in self.names:
            hint = likely(name, self.names) or f"the commands are {', '.join(self.names)}"
            self.error(f"no command {name!r}; {hint}")
