"""Arguments of commands: a model, the forms of its numbers, its devices and settings."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, get_args

from rekindle.cli.models.targets import LARGER, known_targets
from rekindle.cli.units import parse_size
from rekindle.core.policy import DraftSource, Ticks
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.settings.engine import Dtype, Implementation, KvDtype, Quantize, SettingsOptions, check_axes

if TYPE_CHECKING:
    from rekindle.formats.checkpoints.hub.names import HubModel

MODELS: Final = (
    f"{NAME}, a directory, a .gguf file, owner/name or owner/name/file.gguf on the hub, a name of "
    "`rekindle models --local`, or auto"
)
"""Names of models, for the help of commands."""


def add_model(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add the arguments for a model, its revision and the forms of its numbers; `nargs` as in argparse."""
    parser.add_argument("model", metavar="MODEL", nargs=nargs, help=MODELS)
    add_forms(parser)


def add_forms(parser: ArgumentParser) -> None:
    """Add the arguments for a model's revision and the forms of its numbers."""
    parser.add_argument("--revision", metavar="NAME", help="a branch, a tag or a commit of a model on the hub")
    text = "the file with the vision tower of a GGUF model (the one beside it)"
    parser.add_argument("--mmproj", metavar="FILE", help=text)
    text = "dtype of weights (float32 on CPUs, float16 on GPUs without bfloat16, else bfloat16)"
    parser.add_argument("--dtype", choices=get_args(Dtype), help=text)
    text = "dtype of keys and values in pages (the dtype of weights)"
    parser.add_argument("--kv-dtype", choices=get_args(KvDtype), help=text)
    text = "codes to make from the matrices of the model as they are read"
    parser.add_argument("--quantize", choices=get_args(Quantize), help=text)


def add_chat_template(parser: ArgumentParser) -> None:
    """Add the argument for a chat template."""
    text = "a file with the Jinja source of a chat template, in place of the model's, or a name such as chatml"
    parser.add_argument("--chat-template", type=_template, metavar="FILE|NAME", help=text)


def lacks_template(model: str, revision: str | None = None) -> bool | None:
    """Return True for a model for texts whose files have no chat template; None without files, here or on the hub.

    Of a model on the hub that is not cached, the small files alone are downloaded.
    """
    from rekindle.formats.checkpoints.hub.cached import cached_path
    from rekindle.formats.checkpoints.hub.names import HubModel
    from rekindle.formats.checkpoints.local.sources import has_prefix
    from rekindle.formats.checkpoints.open import open_checkpoint

    path: str | Path = model if has_prefix(model) else Path(model).expanduser()
    if isinstance(path, Path) and not path.exists():  # a model on the hub is downloaded by the session alone
        hub_model = HubModel.of(model, revision)
        cached = None if hub_model is None else cached_path(hub_model)
        if cached is None:
            return None if hub_model is None else _lacks_template_there(hub_model)
        path = cached
    checkpoint = open_checkpoint(path)
    tokenizer = checkpoint.tokenizer
    return checkpoint.uses.generates and (tokenizer is None or tokenizer.chat_template is None)


def _lacks_template_there(model: "HubModel") -> bool | None:
    """Return True for a model for texts without a chat template on the hub; None if the hub does not tell."""
    from rekindle.formats.checkpoints.hub.cached import fetch_settings
    from rekindle.formats.checkpoints.huggingface.classifier import is_classifier
    from rekindle.formats.checkpoints.huggingface.tokenizer import chat_templates
    from rekindle.formats.model_file import read_json

    if model.file is not None:  # the header of a GGUF file has it
        return None
    with TemporaryDirectory() as directory:
        files = Path(directory)
        if not fetch_settings(model, files) or not (files / "tokenizer_config.json").is_file():
            return None
        generates = not (files / "modules.json").is_file() and not is_classifier(read_json(files / "config.json"))
        return generates and not chat_templates(files, read_json(files / "tokenizer_config.json"))


def add_adapters(parser: ArgumentParser) -> None:
    """Add the argument for adapters."""
    text = "a LoRA adapter saved by PEFT, as the model NAME for clients; may be repeated"
    parser.add_argument("--adapter", type=_named_path, metavar="NAME=PATH", action="append", default=[], help=text)


def add_devices(parser: ArgumentParser) -> None:
    """Add the arguments for a target and its mesh."""
    text = f"a machine other than this one: {', '.join(known_targets())}, or {LARGER}"
    parser.add_argument("--target", metavar="TARGET", help=text)
    add_mesh(parser)


def add_mesh(parser: ArgumentParser) -> None:
    """Add the argument for a mesh of devices."""
    text = "the number of devices sharing the model, and of groups of them, as in tensor=8 or data=2,tensor=4"
    parser.add_argument("--mesh", dest="axes", type=_axes, default={}, metavar="AXIS=N", help=text)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for a model, a target and settings."""
    add_model(parser)
    add_devices(parser)
    add_settings(parser)


def add_settings(parser: ArgumentParser) -> None:
    """Add the arguments for settings. Absent settings keep the defaults of `open`."""
    kernels = get_args(Implementation)
    parser.add_argument("--implementation", choices=kernels, help="kernels to use (the best for the device)")
    settings = parser.add_argument_group("settings, as in `open`")
    for name, text in (
        ("page-size", "tokens per page"),
        ("num-pages", "pages in the pool"),
        ("max-context", "the most tokens of one request"),
        ("max-running", "requests in the running batch"),
        ("max-prefill-tokens", "prompt tokens computed in one tick"),
        ("decode-steps", "tokens of a request computed in one tick while no request waits"),
        ("max-logprobs", "the most alternatives of a token for a request"),
        ("max-adapters", "LoRA adapters at a time"),
        ("max-adapter-rank", "the largest rank of an adapter"),
    ):
        settings.add_argument(f"--{name}", type=int, metavar="N", help=text)
    text = "memory for the pool, instead of its pages, such as 2G or 1.5GiB"
    settings.add_argument("--pool-bytes", type=parse_size, metavar="SIZE", help=text)
    text = "guess tokens by equal text before, or by the model's draft head, for requests without a draft of their own"
    settings.add_argument("--draft", choices=get_args(DraftSource), help=text)
    settings.add_argument("--ticks", choices=get_args(Ticks), help="how prompts and decode rows share the device")
    settings.add_argument(
        "--deterministic",
        action="store_const",
        const=True,
        help="one shape for all ticks, so tokens do not depend on the batch",
    )
    for part, text in (("prefill", "prompt tokens"), ("decode", "decode rows")):
        settings.add_argument(
            f"--{part}-buckets", type=_numbers, metavar="N,N", help=f"padded {text} of a tick, such as 16,64"
        )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def options_of(arguments: Namespace, options: type) -> dict[str, Any]:
    """Return the present arguments that are also keys of a TypedDict of options."""
    names = options.__annotations__
    return {name: value for name, value in vars(arguments).items() if name in names and value is not None}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"expected comma-separated numbers, such as 16,64, got {text!r}") from error


def _template(path: str) -> str:
    from rekindle.formats.rendering.named_templates import names, source_of

    if (source := source_of(path)) != path:
        return source
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"cannot read the chat template {path!r}: {error}; templates with names are {names()}"
        raise ArgumentTypeError(text) from error


def _named_path(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise ArgumentTypeError(f"expected a name and a path, such as sql=adapters/sql, got {text!r}")
    return name, path


def _axes(text: str) -> dict[str, int]:
    """Return the size of each axis of a mesh, by name."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    axes = {name.strip(): int(size) for name, _, size in pairs if size.isdecimal() and int(size)}
    if len(axes) < len(pairs):
        raise ArgumentTypeError(f"expected an axis and its size, such as tensor=8, got {text!r}")
    return axes


def settings_of(arguments: Namespace) -> dict[str, Any]:
    """Return the present settings as arguments of `open`; raise ConfigError for an unknown axis of the mesh."""
    check_axes("the mesh", arguments.axes)
    options = options_of(arguments, SettingsOptions) | {
        name: size for name, size in arguments.axes.items() if name in SettingsOptions.__annotations__
    }
    if "max_prefill_tokens" in options:
        options["prefill_chunk"] = options["max_prefill_tokens"]
    return options
