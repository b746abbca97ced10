"""`python -m rekindle generate`: generate from one prompt, with the text on stdout and all else on stderr."""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import rekindle
from rekindle.cli import needed
from rekindle.cli.answer import Answer, answer
from rekindle.client.prompts import Messages
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.params import SamplingOptions, SamplingParams


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments. A sampling flag that is not given leaves the default to `SamplingParams`."""
    needed.add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", help='the text, or "-" to read it from stdin')
    parser.add_argument("--chat", action="store_true", help="the prompt is a message for the model's chat template")
    for flag, kind, metavar, what in (
        ("max-tokens", int, "N", "most tokens to generate (256)"),
        ("temperature", float, "T", "0 takes the likeliest token, which is the default where the model names none"),
        ("top-k", int, "K", "sample among the K likeliest tokens, at temperature 1 unless another is given"),
        ("top-p", float, "P", "sample among the fewest likeliest tokens that have this probability (likewise)"),
        ("min-p", float, "P", "drop tokens less than P times as likely as the likeliest (likewise)"),
        ("repetition-penalty", float, "P", "above 1 repeats less of prompt and output, 1 changes nothing"),
        ("frequency-penalty", float, "P", "above 0 repeats less of the output, by how often it has a token"),
        ("presence-penalty", float, "P", "above 0 repeats less of the output, however often it has a token"),
        ("seed", int, "N", "makes the draws repeatable (likewise)"),
        ("min-tokens", int, "N", "do not stop before there are N tokens"),
    ):
        parser.add_argument(f"--{flag}", type=kind, metavar=metavar, help=what)
    for flag, item, metavar, what in (
        ("stop", str, "TEXT", "stop before this text (a line end is $'\\n' in bash); may be repeated"),
        ("stop-token-id", int, "N", "stop at this token too; may be repeated"),
    ):
        parser.add_argument(f"--{flag}", type=item, metavar=metavar, action="append", help=what)
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the model's own end tokens")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, not the text as it comes")
    parser.add_argument("--quiet", action="store_true", help="no progress and no figures on stderr")


def generate(arguments: Namespace) -> int:
    """Check everything that needs no model, open it, and generate."""
    options: Any = {**needed.given(arguments, SamplingOptions), "stop_token_ids": arguments.stop_token_id or ()}
    sampling: SamplingOptions = options
    SamplingParams.from_options(sampling)
    prompt = _prompt(arguments)
    # The shapes are those of a session in a notebook, so that each finds the programs that the other has compiled.
    session = rekindle.open_sync(
        arguments.model,
        progress=not arguments.quiet,
        revision=arguments.revision,
        dtype=arguments.dtype,
        precompile="lazy",
    )
    with session:
        given = answer(session, prompt, show=not arguments.json, **sampling)
    if arguments.json:
        print(json.dumps(_report(arguments.model, given)), flush=True)
    if not arguments.quiet:
        print(_figures(given), file=sys.stderr)
    return 0


def _prompt(arguments: Namespace) -> str | Messages:
    text: str = arguments.prompt
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise InvalidRequest("the prompt is empty; it needs at least one character")
    return [{"role": "user", "content": text}] if arguments.chat else text


def _report(model: str, given: Answer) -> dict[str, Any]:
    return {
        "model": model,
        "text": given.generation.text,
        "token_ids": given.generation.token_ids,
        "finish_reason": given.generation.finish_reason,
        "stopped_by": given.generation.stopped_by,
        "prompt_tokens": given.generation.usage.prompt_tokens,
        "seconds_to_first_token": round(given.first, 4),
        "seconds": round(given.seconds, 4),
    }


def _figures(given: Answer) -> str:
    made = given.generation
    return (
        f"{made.usage.prompt_tokens} prompt tokens, {given.tokens} generated in {given.seconds:.2f} s "
        f"({given.tokens / given.seconds:.1f} tokens/s, the first after {given.first:.2f} s), "
        f"ended by {made.finish_reason}{'' if made.stopped_by is None else f' at {made.stopped_by!r}'}"
    )
