"""`python -m rekindle batch`: its arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred
from rekindle.formats.checkpoints.embedded import NAME

EXAMPLES: Final = (
    "rekindle batch requests.jsonl answers.jsonl",
    "rekindle batch requests.jsonl answers.jsonl -m owner/name --name gpt-4o-mini",
    "make-requests | rekindle batch - answers.jsonl",
    "rekindle batch requests.jsonl answers.jsonl --adapter sql=adapters/sql --max-running 32",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    text = (
        "a file of OpenAI's Batch API: lines of JSON with custom_id, method, url and body, for chat completions, "
        "completions, embeddings and responses; - is standard input"
    )
    parser.add_argument("requests", metavar="IN", help=text)
    text = "the file to write: a line for each of IN, in its order. Until then, answers are in OUT.part: the same "
    text += "command goes on where it was stopped"
    parser.add_argument("answers", metavar="OUT", help=text)
    text = f"{requirements.MODELS} (the model named by the lines, else {NAME})"
    parser.add_argument("-m", "--model", metavar="MODEL", help=text)
    text = "a name of the model in the lines; may be repeated, and answers have the first (MODEL, or the end of a path)"
    parser.add_argument("--name", action="append", default=[], help=text)
    text = "lines in flight at once (twice --max-running)"
    parser.add_argument("--window", type=int, metavar="N", help=text)
    requirements.add_forms(parser)
    requirements.add_chat_template(parser)
    requirements.add_adapters(parser)
    requirements.add_mesh(parser)
    requirements.add_settings(parser)
    parser.usage = "%(prog)s [OPTION ...] IN OUT"
    parser.set_defaults(run=deferred("rekindle.cli.batch.batch", "batch"))
