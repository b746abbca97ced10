"""Arguments of generating commands: the sampling parameters, an adapter and the opening of the model."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, Final, get_args

import rekindle
from rekindle.cli import requirements
from rekindle.core.policy import DraftSource
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.settings.engine import Precompile

if TYPE_CHECKING:
    from rekindle.session.session import Session

ADAPTER: Final = "adapter"
"""The name of the adapter given with --adapter."""


def add_arguments(parser: ArgumentParser, most: str) -> None:
    """Add the arguments. Absent ones keep the defaults of `SamplingParams` and of the model.

    Args:
        parser: the parser of the command.
        most: the default of --max-tokens, as text.
    """
    parser.add_argument("--max-tokens", type=int, metavar="N", help=f"the most tokens to generate ({most})")
    for flag, kind, metavar, text in (
        ("temperature", float, "T", "0 is greedy, the default unless the model has another"),
        ("top-k", int, "K", "sample among the K likeliest tokens (at temperature 1 by default)"),
        ("top-p", float, "P", "sample among the likeliest tokens with total probability P (likewise)"),
        ("min-p", float, "P", "drop tokens less than P times as likely as the likeliest (likewise)"),
        ("repetition-penalty", float, "P", "above 1 reduces repetition of prompt and output; 1 has no effect"),
        ("frequency-penalty", float, "P", "above 0 reduces repetition of the output, in proportion to a token's count"),
        ("presence-penalty", float, "P", "above 0 reduces repetition of the output, regardless of a token's count"),
        ("seed", int, "N", "makes sampling repeatable (likewise)"),
        ("min-tokens", int, "N", "do not stop before N tokens"),
        ("thinking-budget", int, "N", "end the model's thoughts after N tokens; the answer follows"),
    ):
        parser.add_argument(f"--{flag}", type=kind, metavar=metavar, help=text)
    for flag, item, metavar, text in (
        ("stop", str, "TEXT", "stop before this text (a line end is $'\\n' in bash); may be repeated"),
        ("stop-token-id", int, "N", "stop at this token too; may be repeated"),
    ):
        parser.add_argument(f"--{flag}", type=item, metavar=metavar, action="append", help=text)
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at the model's end tokens")
    text = "stop when the output repeats a pattern over and over"
    parser.add_argument("--stop-on-repetition", action="store_const", const=True, help=text)
    text = "guess tokens by those after equal text before, or by the model's draft head: the same answer, often sooner"
    parser.add_argument("--draft", choices=get_args(DraftSource), help=f"{text}; never with penalties")
    text = "the directory of a LoRA adapter saved by PEFT"
    parser.add_argument("--adapter", dest="adapter_path", metavar="PATH", help=text)


def options_of(arguments: Namespace) -> SamplingOptions:
    """Return the sampling options of the arguments, for sessions of `open_session`.

    Raises:
        InvalidRequest: an option is invalid.
    """
    options: Any = requirements.options_of(arguments, SamplingOptions)
    options["stop_token_ids"] = arguments.stop_token_id or ()
    sampling: SamplingOptions = options
    SamplingParams.from_options(sampling)
    if arguments.adapter_path:
        sampling["adapter"] = ADAPTER
    return sampling


def open_session(arguments: Namespace, model: str, precompile: Precompile) -> "Session":
    """Open a model in the shapes of a notebook's session, so that each finds the programs compiled by the other.

    Args:
        arguments: the parsed arguments.
        model: the model.
        precompile: the programs to compile: "lazy" for a session of one request, whose programs have no padding then.
    """
    return rekindle.open_sync(
        model,
        progress=not arguments.quiet,
        show_restored=False,
        revision=arguments.revision,
        chat_template=arguments.chat_template,
        dtype=arguments.dtype,
        kv_dtype=arguments.kv_dtype,
        quantize=arguments.quantize,
        precompile=precompile,
        draft="mtp" if arguments.draft == "mtp" else None,
        adapters={ADAPTER: arguments.adapter_path} if arguments.adapter_path else {},
    )
