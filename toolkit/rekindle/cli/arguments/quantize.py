"""`python -m rekindle quantize`: its arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred

EXAMPLES: Final = (
    "rekindle quantize owner/name model.gguf",
    "rekindle quantize path/to/directory model-int8 --bits 8",
    "rekindle quantize model-q8.gguf model-q4.gguf --requantize",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=requirements.MODELS)
    text = "the new file, whose name ends in .gguf, or the new directory of safetensors"
    parser.add_argument("out", metavar="OUT", help=text)
    text = "bits of a weight (4); the embedding and the head have 8 in a GGUF file, and their numbers in safetensors"
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4, help=text)
    text = "for llama.cpp, or for vLLM and transformers (by the name of OUT)"
    parser.add_argument("--format", choices=("gguf", "safetensors"), help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace a model at OUT")
    text = "round the numbers of a quantized model once more"
    parser.add_argument("--requantize", action="store_true", help=text)
    parser.add_argument("--revision", metavar="NAME", help="a branch, a tag or a commit of a model on the hub")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.usage = "%(prog)s [OPTION ...] MODEL OUT"
    parser.set_defaults(run=deferred("rekindle.cli.models.quantize", "quantize"))
