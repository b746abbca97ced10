"""`python -m rekindle models`: its arguments."""

from argparse import ArgumentParser
from typing import Final, get_args

from rekindle.cli.starting import deferred
from rekindle.settings.engine import Dtype

EXAMPLES: Final = (
    "rekindle models",
    "rekindle models qwen3",
    "rekindle models llama --context 32768",
    "rekindle models --machine T4",
    "rekindle models --local",
)
TOKENS: Final = 8192
"""The default number of tokens of context."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a part of a name, and a number of tokens."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="part of the name of a family or of a model")
    text = f"tokens of context in addition to the weights ({TOKENS})"
    parser.add_argument("--context", type=int, default=TOKENS, metavar="N", help=text)
    text = "dtype of weights, keys and values (the default of `open` for the device)"
    parser.add_argument("--dtype", choices=get_args(Dtype), help=text)
    text = "a machine other than this one: T4, L4, A100, A100-80GB, v5e-1 or v6e-1"
    parser.add_argument("--machine", metavar="NAME", help=text)
    text = "list the models of Ollama, LM Studio, the hub's cache and this folder, with sizes and memory"
    parser.add_argument("--local", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=deferred("rekindle.cli.models.command", "models"))
