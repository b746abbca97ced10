"""The limits and programs that a model needs with given settings, and the store of its programs."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import jax

from rekindle.core.checkpoints.open import open_checkpoint
from rekindle.core.concurrency.progress import Report
from rekindle.core.config import Implementation, Settings, SettingsOptions, Ticks, check_axes
from rekindle.core.device.devices import choices, places_of, shared_by
from rekindle.core.device.place import Place
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.device.programs.targets import LARGER, devices_of, known_targets
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.engine.loading.planning import fewest, plan
from rekindle.core.engine.loading.stores import PROGRAMS
from rekindle.core.errors import ConfigError
from rekindle.core.store.directory import cache_dir


@dataclass(frozen=True, slots=True)
class Needed:
    """A model as `open` would make it.

    Attributes:
        blueprint: for the devices that share the model.
        devices: all of the target, or of this machine.
        store: where its programs are stored.
    """

    blueprint: Blueprint
    devices: Sequence[jax.Device]
    store: ProgramStore

    @classmethod
    def of(cls, arguments: Namespace, report: Report, *, compiles: bool = False) -> "Needed":
        """Return what the arguments of `add_arguments` ask for; download the model if it is not on this machine yet.

        Args:
            compiles: whether a step may be compiled to see how large the pool will be.

        Raises:
            ModelError: the model cannot be opened.
            ConfigError: the settings do not fit it, or nothing can be compiled for the target.
            StorageError: the cache directory cannot be used.
        """
        target: str | None = arguments.target
        devices = jax.devices() if target is None else devices_of(target)
        settings = _settings(arguments)
        places = places_of(settings) if target is None else _places(target, devices, settings)
        checkpoint = open_checkpoint(arguments.model, report, revision=arguments.revision)
        place = fewest(checkpoint, settings, places)
        blueprint = plan(checkpoint, settings, place, cache_dir(), compiles=compiles, report=report)
        return cls(blueprint, devices, ProgramStore(cache_dir(PROGRAMS), blueprint.program_keys(), place.devices))


def add_model(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add a model, `nargs` of them, and its dtype."""
    what = "smollm2-135m-instruct, a directory, a .gguf file, or owner/name or owner/name/file.gguf on the hub"
    parser.add_argument("model", metavar="MODEL", nargs=nargs, help=what)
    parser.add_argument("--revision", metavar="NAME", help="a branch, a tag or a commit of a model on the hub")
    what = "of weights and pages (float32 on CPU, else bfloat16)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help=what)


def add_devices(parser: ArgumentParser) -> None:
    """Add a target, and how its devices share a model."""
    what = f"a machine other than this one: {', '.join(known_targets())}, or {LARGER}"
    parser.add_argument("--target", metavar="TARGET", help=what)
    add_mesh(parser)


def add_mesh(parser: ArgumentParser) -> None:
    """Add how devices share a model."""
    what = "how many devices share the model, and how many such groups there are, as in tensor=8 or data=2,tensor=4"
    parser.add_argument("--mesh", dest="axes", type=_axes, default={}, metavar="AXIS=N", help=what)


def add_arguments(parser: ArgumentParser) -> None:
    """Add a model, a target and settings."""
    add_model(parser)
    add_devices(parser)
    add_settings(parser)


def add_settings(parser: ArgumentParser) -> None:
    """Add settings. One that is not given has the default of `open`."""
    kernels = get_args(Implementation)
    parser.add_argument("--implementation", choices=kernels, help="of the kernels (the best for the device)")
    settings = parser.add_argument_group("settings, as `open` will be given them")
    for name, what in (
        ("page-size", "tokens per page"),
        ("num-pages", "pages in the pool"),
        ("pool-bytes", "memory for the pool, instead of its pages"),
        ("max-context", "the most tokens of one request"),
        ("max-running", "requests in the running batch"),
        ("max-prefill-tokens", "prompt tokens computed in one tick"),
        ("decode-steps", "tokens of a request computed in one tick while nobody waits"),
        ("max-logprobs", "the most alternatives that a request may ask for"),
    ):
        settings.add_argument(f"--{name}", type=int, metavar="N", help=what)
    settings.add_argument("--ticks", choices=get_args(Ticks), help="how prompts and decode rows share the device")
    settings.add_argument(
        "--deterministic",
        action="store_const",
        const=True,
        help="one shape for all ticks, so that no batch changes a token",
    )
    for part, what in (("prefill", "prompt tokens"), ("decode", "decode rows")):
        settings.add_argument(
            f"--{part}-buckets", type=_numbers, metavar="N,N", help=f"padded {what} of a tick, such as 16,64"
        )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def given(arguments: Namespace, options: type) -> dict[str, Any]:
    """Return the arguments that were given and that a TypedDict of options names."""
    names = options.__annotations__
    return {name: value for name, value in vars(arguments).items() if name in names and value is not None}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"expected numbers with commas between them, such as 16,64, got {text!r}") from error


def _axes(text: str) -> dict[str, int]:
    """Return the sizes of the axes of a mesh by their names."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    axes = {name.strip(): int(size) for name, _, size in pairs if size.isdecimal() and int(size)}
    if len(axes) < len(pairs):
        raise ArgumentTypeError(f"expected an axis and its size, such as tensor=8, got {text!r}")
    return axes


def _places(target: str, devices: Sequence[jax.Device], settings: Settings) -> list[Place]:
    tensor, data = settings.tensor, settings.data
    if data * (tensor or 1) > len(devices):
        raise ConfigError(f"{target} has {len(devices)} devices, and the mesh has data={data}, tensor={tensor or 1}")
    return choices(devices, data) if tensor is None else [shared_by(devices, tensor, data)]


def settings_of(arguments: Namespace) -> dict[str, Any]:
    """Return the settings that were given, as `open` takes them; raise ConfigError for an unknown axis of the mesh."""
    check_axes("the mesh", arguments.axes)
    chosen = given(arguments, SettingsOptions) | {
        name: size for name, size in arguments.axes.items() if name in SettingsOptions.__annotations__
    }
    if "max_prefill_tokens" in chosen:
        chosen["prefill_chunk"] = chosen["max_prefill_tokens"]
    return chosen


def _settings(arguments: Namespace) -> Settings:
    return Settings(**settings_of(arguments), precompile="lazy")  # which does not mind how many programs there are
