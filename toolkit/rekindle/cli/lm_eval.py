"""The command `lm-eval`: the evaluation harness, with sessions registered as model "rekindle"."""

import shutil
import sys
from argparse import ArgumentParser, Namespace

from rekindle.cli.parser import filled
from rekindle.core.errors import not_installed

PARSER_OPTIONS = {"prefix_chars": "\0", "add_help": False}
"""Options of a parser without flags, so that the harness receives all arguments unchanged."""


HELP = """\
usage: rekindle lm-eval --model rekindle --model_args pretrained=MODEL --tasks TASK,TASK [OPTION ...]

Run lm-eval's tasks on a session. The arguments are those of lm-eval. To install it: pip install 'rekindle-llm[lm-eval]'

example:
  rekindle lm-eval --model rekindle --model_args pretrained=smollm2-135m-instruct --tasks arc_easy --limit 50"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("arguments", nargs="*", help="arguments of lm-eval: --model rekindle --tasks ...")
    parser.set_defaults(run=lm_eval)


def lm_eval(arguments: Namespace) -> int:
    """Run the harness with its arguments.

    Raises:
        ConfigError: the harness is not installed.
    """
    try:
        from lm_eval.__main__ import cli_evaluate

        import rekindle.session.lm_eval  # noqa: F401  # registers the model with the harness
    except ImportError as error:
        if not {"-h", "--help"}.isdisjoint(arguments.arguments):
            print(filled(HELP, shutil.get_terminal_size().columns))
            return 0
        raise not_installed("lm-eval", "lm-eval", error) from error
    original, sys.argv = sys.argv, ["lm-eval", *arguments.arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = original
    return 0
