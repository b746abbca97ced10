"""Generation from one prompt, with the text on stdout and the rest on stderr."""

import json
from argparse import Namespace
from typing import Any

from rekindle.cli import sampling
from rekindle.cli.chat.wrapping import print_note
from rekindle.cli.generate.answer import print_stream
from rekindle.cli.generate.prompt import prompt_of
from rekindle.client.calls.options import Messages
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.params import SamplingOptions
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.images.sources import image_source
from rekindle.results.generation import Generation
from rekindle.session.session import Session


def generate(arguments: Namespace) -> int:
    """Check the arguments before opening the model, then generate."""
    if arguments.raw and arguments.system is not None:
        arguments.refuse("--system needs the chat template, and --raw leaves it out: omit one of them")
    options = sampling.options_of(arguments)
    if arguments.schema is not None:
        options["json_schema"] = arguments.schema
    text = prompt_of(arguments.words, arguments.model, arguments.refuse)
    if not text:
        raise InvalidRequest("the prompt is empty; give at least one character")
    images = [image_source(name) for name in arguments.images]
    model = arguments.model or NAME
    with sampling.open_session(arguments, model, "lazy") as session:
        prompt = _prompt(session, text, arguments.system, raw=arguments.raw)
        streams = arguments.stream and not arguments.json
        handle = session.submit(prompt, **options, images=images or None)
        generation = print_stream(iter(handle)) if streams else handle.result()
    if arguments.json:
        print(json.dumps(_report(model, generation, options)), flush=True)
    elif not streams:
        print(generation.text, flush=True)
    if not arguments.quiet:
        print_note(_figures(generation))
    return 0


def _prompt(session: Session, text: str, system: str | None, *, raw: bool) -> str | Messages:
    """Return the text for a model without a chat template or with --raw, else a conversation.

    Raises:
        InvalidRequest: there is a system message, and the model has no chat template.
    """
    tokenizer = session.tokenizer
    if raw or tokenizer is None or tokenizer.chat_template is None:
        if system is not None:
            raise InvalidRequest(f"--system needs a chat template, and {session.name} has none: put it into the prompt")
        return text
    messages = [{"role": "user", "content": text}]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _report(model: str, generation: Generation, options: SamplingOptions) -> dict[str, Any]:
    report = {
        "model": model,
        "text": generation.text,
        "token_ids": generation.token_ids,
        "finish_reason": generation.finish_reason,
        "stopped_by": generation.stopped_by,
        "prompt_tokens": generation.usage.prompt_tokens,
        "image_tokens": generation.usage.image_tokens,
        "cached_tokens": generation.cached.total,
        "seconds_to_first_token": round(generation.timings.first_token, 4),
        "seconds": round(generation.timings.total, 4),
    }
    return report | ({"parsed": generation.parsed} if "json_schema" in options else {})


def _figures(generation: Generation) -> str:
    count, timings = len(generation.token_ids), generation.timings
    end = f" at {generation.stopped_by!r}" if isinstance(generation.stopped_by, str) else ""
    return (
        f"{generation.usage.prompt_tokens} prompt tokens, {count} generated in {timings.total:.2f} s "
        f"({count / timings.total:.1f} tokens/s, the first after {timings.first_token:.2f} s), "
        f"ended by {generation.finish_reason}{end}"
    )
