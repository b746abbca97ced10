"""Generation from one prompt, with the text on stdout and the rest on stderr."""

import json
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any, Final, NoReturn, Protocol

from rekindle.cli import sampling
from rekindle.cli.chat.wrapping import print_note
from rekindle.cli.generate.answer import print_stream
from rekindle.client.calls.options import Messages
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.params import SamplingOptions
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.local.sources import has_prefix
from rekindle.formats.images.sources import image_source
from rekindle.results.generation import Generation
from rekindle.session.session import Session

STDIN: Final = "-"
"""The word in whose place the text of standard input is put."""
PATIENCE_SECONDS: Final = 1.0
"""The time after which a wait for standard input is announced."""


class Refuse(Protocol):
    """Exits with a message about invalid arguments; `ArgumentParser.error` is one."""

    def __call__(self, message: str) -> NoReturn: ...


def prompt_of(words: Sequence[str], model: str | None, refuse: Refuse) -> str:
    """Return the prompt: the words, with the text of standard input in the place of "-", or else before them.

    Standard input is read if a word is "-", if there are no words and it is no terminal, or if it is a file or a pipe.

    Args:
        words: the words of the command line, joined by spaces.
        model: the model of --model; None if there is none.
        refuse: exits with a message about a missing prompt, or about a model without --model.
    """
    if model is None and words and _is_model(words):
        rest = " ".join(words[1:]) or "your prompt"
        refuse(f"{words[0]!r} is a model, which needs -m: rekindle generate -m {words[0]} {rest!r}")
    if STDIN in words:
        return " ".join(_read_stdin() if word == STDIN else word for word in words)
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            refuse("there is no prompt: give its words, or pipe a text into the command")
        return _read_stdin()
    text = _read_stdin() if _is_redirected() else ""
    return "\n\n".join(filter(None, (text, " ".join(words))))


def _is_model(words: Sequence[str]) -> bool:
    """Return True if the first word can only be a model: its name or its path; alone, also its id on the hub."""
    first = words[0]
    if first.lower() == NAME or first.lower().endswith(".gguf"):
        return True
    try:
        is_directory = (Path(first) / "config.json").is_file()
    except (OSError, ValueError):  # a long prompt is no path
        return False
    return is_directory or (len(words) == 1 and (has_prefix(first) or HubModel.of(first) is not None))


def _is_redirected() -> bool:
    """Return True if standard input is a file or a pipe, rather than a terminal, a socket or the null device."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed, or an object of Python
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _read_stdin() -> str:
    """Return the text of standard input without its last line end. A wait of over a second is announced."""
    note = Timer(PATIENCE_SECONDS, print, ["rekindle: reading standard input to its end"], {"file": sys.stderr})
    note.daemon = True
    note.start()
    try:
        return sys.stdin.read().removesuffix("\n")
    finally:
        note.cancel()


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
