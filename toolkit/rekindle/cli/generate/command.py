"""`python -m rekindle generate`: the arguments of a generation from one prompt."""

import json
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from pathlib import Path
from typing import Any, Final

from rekindle.cli import requirements, sampling
from rekindle.cli.starting import deferred
from rekindle.formats.checkpoints.embedded import NAME

EXAMPLES: Final = (
    'rekindle generate "What is the capital of France?"',
    'rekindle generate -m owner/name --system "Answer in French." "Good morning"',
    "git diff | rekindle generate 'Write a commit message for this diff.'",
    'rekindle generate --raw "Once upon a time" --max-tokens 40 --temperature 0.8',
    'rekindle generate -m HuggingFaceTB/SmolVLM2-256M-Video-Instruct --image cat.png "What is this?"',
    """rekindle generate "A city" --schema '{"type": "object", "properties": {"name": {"type": "string"}}}'""",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    text = "words of the prompt, joined by spaces. Text from standard input comes before them, or in the place of -"
    parser.add_argument("words", metavar="PROMPT", nargs="*", help=text)
    parser.add_argument("-m", "--model", metavar="MODEL", help=f"{requirements.MODELS} ({NAME})")
    parser.add_argument("-s", "--system", metavar="TEXT", help="a system message before the prompt")
    text = "the file of an image (PNG, JPEG, WebP, GIF) for the prompt; repeat it for several"
    parser.add_argument("--image", metavar="FILE", action="append", default=[], dest="images", help=text)
    text = "use the prompt as it is, without the model's chat template"
    parser.add_argument("--raw", action="store_true", help=text)
    text = "a JSON schema of the answer, or the path of a file with one"
    parser.add_argument("--schema", metavar="FILE|JSON", type=_schema, help=text)
    forms = parser.add_mutually_exclusive_group()
    text = "print the text as it is generated (the default), or at the end"
    forms.add_argument("--stream", action=BooleanOptionalAction, default=True, help=text)
    forms.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--quiet", action="store_true", help="no progress and no figures on stderr")
    requirements.add_forms(parser)
    requirements.add_chat_template(parser)
    sampling.add_arguments(parser, "no limit but the context; 256 with --raw")
    parser.usage = "%(prog)s [OPTION ...] [PROMPT ...]"
    parser.set_defaults(run=deferred("rekindle.cli.generate.generating", "generate"), refuse=parser.error)


def _schema(text: str) -> dict[str, Any]:
    """Return a JSON schema, from its text or from a file.

    Raises:
        ArgumentTypeError: the file cannot be read, or the text is no JSON object.
    """
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ArgumentTypeError(f"expected a JSON object or a file with one; {text!r}: {error}") from error
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"no valid JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ArgumentTypeError(f"expected a JSON object, got {source!r:.80}")
    return schema
