"""`python -m rekindle generate`: generate from one prompt, with the text on stdout and the rest on stderr."""

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import rekindle
from rekindle.cli import requirements
from rekindle.cli.answer import Answer, answer
from rekindle.client.prompts import Messages
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.params import SamplingOptions, SamplingParams


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments. Absent sampling flags keep the defaults of `SamplingParams`."""
    requirements.add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", help='the text, or "-" to read it from stdin')
    parser.add_argument("--chat", action="store_true", help="the prompt is a message for the model's chat template")
    for flag, kind, metavar, text in (
        ("max-tokens", int, "N", "the most tokens to generate (256)"),
        ("temperature", float, "T", "0 is greedy, the default unless the model has another"),
        ("top-k", int, "K", "sample among the K likeliest tokens (at temperature 1 by default)"),
        ("top-p", float, "P", "sample among the likeliest tokens with total probability P (likewise)"),
        ("min-p", float, "P", "drop tokens less than P times as likely as the likeliest (likewise)"),
        ("repetition-penalty", float, "P", "above 1 reduces repetition of prompt and output; 1 has no effect"),
        ("frequency-penalty", float, "P", "above 0 reduces repetition of the output, in proportion to a token's count"),
        ("presence-penalty", float, "P", "above 0 reduces repetition of the output, regardless of a token's count"),
        ("seed", int, "N", "makes sampling repeatable (likewise)"),
        ("min-tokens", int, "N", "do not stop before N tokens"),
    ):
        parser.add_argument(f"--{flag}", type=kind, metavar=metavar, help=text)
    for flag, item, metavar, text in (
        ("stop", str, "TEXT", "stop before this text (a line end is $'\\n' in bash); may be repeated"),
        ("stop-token-id", int, "N", "stop at this token too; may be repeated"),
    ):
        parser.add_argument(f"--{flag}", type=item, metavar=metavar, action="append", help=text)
    text = "the directory of a LoRA adapter saved by PEFT"
    parser.add_argument("--adapter", dest="adapter_path", metavar="PATH", help=text)
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the model's end tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of streaming")
    parser.add_argument("--quiet", action="store_true", help="no progress and no figures on stderr")


def generate(arguments: Namespace) -> int:
    """Check the arguments before opening the model, then generate."""
    options: Any = {
        **requirements.options_of(arguments, SamplingOptions),
        "stop_token_ids": arguments.stop_token_id or (),
    }
    sampling: SamplingOptions = options
    SamplingParams.from_options(sampling)
    prompt = _prompt(arguments)
    # The same shapes as in a notebook, so each finds the programs compiled by the other.
    session = rekindle.open_sync(
        arguments.model,
        progress=not arguments.quiet,
        revision=arguments.revision,
        dtype=arguments.dtype,
        kv_dtype=arguments.kv_dtype,
        quantize=arguments.quantize,
        precompile="lazy",
        adapters={"adapter": arguments.adapter_path} if arguments.adapter_path else {},
    )
    if arguments.adapter_path:
        sampling["adapter"] = "adapter"
    with session:
        result = answer(session, prompt, show=not arguments.json, **sampling)
    if arguments.json:
        print(json.dumps(_report(arguments.model, result)), flush=True)
    if not arguments.quiet:
        print(_figures(result), file=sys.stderr)
    return 0


def _prompt(arguments: Namespace) -> str | Messages:
    text: str = arguments.prompt
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise InvalidRequest("the prompt is empty; give at least one character")
    return [{"role": "user", "content": text}] if arguments.chat else text


def _report(model: str, result: Answer) -> dict[str, Any]:
    return {
        "model": model,
        "text": result.generation.text,
        "token_ids": result.generation.token_ids,
        "finish_reason": result.generation.finish_reason,
        "stopped_by": result.generation.stopped_by,
        "prompt_tokens": result.generation.usage.prompt_tokens,
        "seconds_to_first_token": round(result.first, 4),
        "seconds": round(result.seconds, 4),
    }


def _figures(result: Answer) -> str:
    generation = result.generation
    end = "" if generation.stopped_by is None else f" at {generation.stopped_by!r}"
    return (
        f"{generation.usage.prompt_tokens} prompt tokens, {result.tokens} generated in {result.seconds:.2f} s "
        f"({result.tokens / result.seconds:.1f} tokens/s, the first after {result.first:.2f} s), "
        f"ended by {generation.finish_reason}{end}"
    )
