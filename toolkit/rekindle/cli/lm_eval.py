"""The command `lm-eval`: the evaluation harness, which finds sessions by the name "rekindle"."""

import sys
from argparse import ArgumentParser, Namespace

from rekindle.core.errors import not_installed

NO_PREFIX = "\0"
"""For a parser that takes all arguments as they are, since they are the harness's."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("arguments", nargs="*", help="as lm-eval has them: --model rekindle --tasks ...")


def lm_eval(arguments: Namespace) -> int:
    """Run the harness with its own arguments.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from lm_eval.__main__ import cli_evaluate

        import rekindle.session.lm_eval  # noqa: F401  # which says the name to the harness
    except ImportError as error:
        raise not_installed("lm-eval", "lm-eval", error) from error
    own, sys.argv = sys.argv, ["lm-eval", *arguments.arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = own
    return 0
