"""The command `info`: the installation, the cache, and a model's architecture and requirements."""

import math
import os
import platform
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp

import rekindle
from rekindle.assembly.counts import parameters
from rekindle.assembly.devices import default_dtype
from rekindle.assembly.limits.accelerators import holding
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.budget import KEPT_FREE
from rekindle.cli.arguments.models import TOKENS
from rekindle.cli.models.planning import Requirements
from rekindle.cli.units import broken
from rekindle.core.errors import StorageError
from rekindle.core.models.config import (
    AttentionConfig,
    DeltaNet,
    DualConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LayerConfig,
    Mamba2,
    ModelConfig,
    Rope,
    ShortConvolution,
    StateConfig,
)
from rekindle.core.models.config.scaling import (
    BaseScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
)
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.store.directory import cache_dir
from rekindle.core.words import quantity, size_text
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.responses.formats import format_of
from rekindle.notebook.progress.bars import ProgressBars
from rekindle.results.facts.traffic import Wire
from rekindle.settings.engine import Settings
from rekindle_kernels.api import choose
from rekindle_kernels.devices import capability_of

Rows = Iterator[tuple[str, str]]
_NAMES = 14
"""Columns of the names of rows."""


def info(arguments: Namespace) -> int:
    """Print the tables. Download the model if it is not on this machine yet, but do not load its weights."""
    if arguments.target is None:  # a target hides this machine's devices
        _print(_installation())
    if arguments.model is not None:
        with ProgressBars(True) as bars:
            blueprint = Requirements.of(arguments, bars.show).blueprint
        if arguments.target is None:
            print()
        _print(_model(blueprint.checkpoint))
        print()
        _print(_needs(blueprint, arguments))
    return 0


def _print(rows: Rows) -> None:
    for name, value in rows:
        print(*broken(value, " " * _NAMES, name.ljust(_NAMES)), sep="\n", flush=True)


def _installation() -> Rows:
    yield "rekindle", rekindle.__version__
    yield "python", f"{platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    for package in ("jax", "jaxlib", "flax"):
        yield package, version(package)
    for device in jax.devices():
        stats = device.memory_stats() or {}
        memory = f", {size_text(stats['bytes_limit'])} for JAX" if "bytes_limit" in stats else ""
        yield "device", f"{device.platform}:{device.id} {device.device_kind}{memory}"
    yield "kernels", _kernels(jax.devices()[0])
    try:
        root = cache_dir()
    except StorageError as error:  # a session opens without it
        yield "cache", f"none, as {error}"
        return
    yield "cache", f"{root}, {_size(root)}"
    for path in sorted(root.iterdir()):
        yield "", f"{path.name}, {_size(path)}"


def _kernels(device: jax.Device) -> str:
    """Return the name of the kernels for models of the usual sizes on a device."""
    name, pool = str(device.platform), (1, 2, 1, 64, 128)
    dtype, capability = jnp.dtype(default_dtype(device)), capability_of(device)
    return str(choose(name, [pool], dtype, weights=dtype, capability=capability))


def _size(path: Path) -> str:
    """Return the number and the size of files; others write meanwhile, so files that are gone do not count."""
    places = [path] if path.is_file() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    sizes = []
    for place in places:
        with suppress(OSError):
            sizes.append(place.stat().st_size)
    return f"{quantity(len(sizes), 'file')}, {size_text(sum(sizes))}"


def _model(checkpoint: Checkpoint) -> Rows:
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    yield "model", checkpoint.source
    yield "architecture", f"{config.family}, {config.num_layers} layers"
    yield "sizes", f"hidden {config.hidden_size}{_widths(config)}"
    for heads, layers in Counter(_heads(attention) for attention in config.attentions).items():
        yield "heads", heads + _scope(layers, config)
    if shared_layers := sum(layer.pages_of is not None for layer in config.layers):
        yield "", f"{quantity(shared_layers, 'layer')} read the keys and values of earlier layers"
    for experts, layers in Counter(filter(None, map(_experts, config.layers))).items():
        sizes = f"{experts.count} of {experts.each.width}, of which a token goes to {experts.router.per_token}"
        shared = f", and to one of {experts.shared.width}" if experts.shared else ""
        yield "experts", f"{sizes}{shared}, in {quantity(layers, 'layer')}"
    for state, layers in Counter(layer.state for layer in config.layers if layer.state is not None).items():
        yield "states", f"{_state(state)}, in {quantity(layers, 'layer')}"
    if config.features is not None:
        yield "features", f"{config.features.size} of each token for each layer"
    if config.streams is not None:
        yield "streams", f"{config.streams.count} residual streams, of which each layer computes with one"
    if windows := Counter(attention.window for attention in config.attentions if attention.window):
        yield "windows", ", ".join(f"{size} tokens in {quantity(n, 'layer')}" for size, n in windows.items())
    yield "vocabulary", f"{config.vocab_size} tokens, {_head_of(config)}"
    yield "parameters", f"{parameters(config):,}"
    yield "context", f"{config.max_context} tokens"
    count = parameters(config) + (0 if checkpoint.vision is None else _numbers(checkpoint.vision.config))
    needed = 2 * (count + TOKENS * config.numbers_per_token) + config.state_bytes
    names = ", ".join(holding(needed + needed // KEPT_FREE)) or "none of the known ones"
    yield "machines", f"{size_text(needed)} in bfloat16 with {TOKENS:,} tokens fit on {names}"
    for rope, layers in Counter(attention.rope for attention in config.attentions).items():
        yield "rope", _rope(rope) + _scope(layers, config)
    if config.positions is not None:
        yield "positions", "learned"
    if checkpoint.vision is not None:
        yield "images", _tower(checkpoint.vision.config)
    yield "end tokens", ", ".join(_token_text(token, checkpoint) for token in sorted(checkpoint.eos_ids)) or "none"
    if tokenizer is None:
        yield "tokenizer", "none: the model takes token_ids"
    else:
        yield "tokenizer", f"{tokenizer.vocab_size} tokens"
        yield "chat", "has a template" if tokenizer.chat_template else "no template: prompts are plain text"
        if tokenizer.chat_template:
            yield "tools", format_of(tokenizer).tools


def _head_of(config: ModelConfig) -> str:
    """Return a clause about the output projection."""
    if not config.predicts:
        return "no head over the next token"
    return f"embedding {'tied' if config.tied_embeddings else 'not tied'}"


def _tower(config: VisionConfig) -> str:
    """Return a vision tower as text."""
    encoder, count = config.encoder, _numbers(config)
    tokens = encoder.max_context // config.merge**2
    sizes = f"{encoder.num_layers} layers, hidden {encoder.hidden_size}, {count:,} parameters"
    return f"{sizes}; {tokens} tokens for {encoder.max_context} patches of {config.patch_size} pixels"


def _numbers(config: VisionConfig) -> int:
    """Return the number of parameters of a vision tower."""
    return sum(map(math.prod, tower_shapes(config).values()))


def _scope(layers: int, config: ModelConfig) -> str:
    return "" if layers == config.num_layers else f", in {quantity(layers, 'layer')}"


def _experts(layer: LayerConfig) -> ExpertsConfig | None:
    match layer.feed_forward:
        case ExpertsConfig() as experts:
            return experts
        case DualConfig(experts=experts):
            return experts
    return None


def _widths(config: ModelConfig) -> str:
    """Return the widths of dense feed-forward layers as text; empty if there are none."""
    parts = (layer.feed_forward for layer in config.layers)
    dense = (part.dense if isinstance(part, DualConfig) else part for part in parts)
    widths = dict.fromkeys(part.width for part in dense if isinstance(part, FeedForwardConfig))
    return f", feed-forward {' and '.join(map(str, widths))}" if widths else ""


def _heads(attention: AttentionConfig) -> str:
    if latent := attention.latent:
        return f"{attention.heads} of {latent.plain + latent.rotary}, over latents of {attention.head_dim} numbers"
    return (
        f"{attention.heads} of {attention.head_dim}, {attention.kv_heads} for keys and values"
        + (", with bias" if attention.qkv_bias else "")
        + (", normalised" if attention.head_norm else "")
        + (", with sinks" if attention.sinks else "")
        + (", with an output gate" if attention.output_gate else "")
    )


def _state(state: StateConfig) -> str:
    """Return a mixer with a state as text."""
    match state:
        case ShortConvolution(channels, taps):
            return f"short convolutions of {channels} channels over {taps} tokens"
        case DeltaNet(heads, _, key_size, value_size):
            return f"gated delta nets of {heads} heads, {key_size} x {value_size} numbers each"
        case Mamba2(heads, _, head_size, state_size):
            return f"Mamba-2 of {heads} heads, {state_size} x {head_size} numbers each"


def _rope(rope: Rope | None) -> str:
    if rope is None:
        return "none"
    share = "" if rope.dims is None else f", over {rope.dims} numbers of a head"
    match rope.scaling:
        case Llama3Scaling(factor, original_context=context):
            scaling = f", Llama-3 scaling {factor:g} from {context} tokens"
        case YarnScaling(factor, original_context=context):
            scaling = f", YaRN scaling {factor:g} from {context} tokens"
        case LinearScaling(factor) | BaseScaling(factor):
            scaling = f", scaling {factor:g}"
        case LongScaling(original_context=context):
            scaling = f", LongRoPE, other factors for requests of more than {context} tokens"
        case DynamicScaling(factor, context):
            scaling = f", dynamic scaling {factor:g} for requests of more than {context} tokens"
        case None:
            scaling = ""
    return f"theta {rope.theta:g}{share}{scaling}"


def _token_text(token: int, checkpoint: Checkpoint) -> str:
    text = None if checkpoint.tokenizer is None else checkpoint.tokenizer.decode([token], skip_special_tokens=False)
    return f"{token} {text}" if text else str(token)


def _needs(blueprint: Blueprint, arguments: Namespace) -> Rows:
    """Yield the memory and limits of a session with these settings; raise if the memory does not suffice."""
    limits, budget, place = blueprint.limits, blueprint.budget, blueprint.place
    tokens, token = limits.pool.tokens, limits.pool.page_bytes // limits.pool.page_size
    yield "dtype", blueprint.dtype.name + ("" if arguments.dtype else f", the default on {place.first.platform}")
    yield "kernels", str(blueprint.programs.shapes.kernels)
    yield "weights", size_text(budget.weights)
    form, how = blueprint.form, "quantized" if blueprint.form.quantize else "packed"
    if formats := blueprint.checkpoint.formats:
        is_kept = form.kinds and form.quantize is None
        yield "files", f"{', '.join(formats)}, {'kept packed' if is_kept else f'read as {blueprint.dtype.name}'}"
    if form.kinds:
        yield how, str(form)
    how = "measured" if budget.measured else "estimated from shapes"
    yield "a step", f"{size_text(budget.workspace)} for the largest, {how}; {size_text(budget.slots)} between steps"
    kind = "" if blueprint.kv_dtype == blueprint.dtype else f", {blueprint.kv_dtype.name}"
    yield "keys, values", f"{size_text(token)} a token of context{kind}"
    if limits.pool.state_bytes:
        yield "states", f"{size_text(limits.pool.state_bytes)} a request, whatever its length"
    yield (
        "pool",
        f"{limits.pool.num_pages - 1} pages of {limits.pool.page_size} tokens, {tokens} in all, "
        f"{size_text(limits.pool.bytes)}",
    )
    together = budget.fixed_bytes + limits.pool.bytes
    capacity = "" if budget.memory is None else f" of {size_text(budget.memory)} on {place}"
    yield "together", size_text(together) + capacity
    yield from _mesh(blueprint, together)
    on_disk = Settings().disk_cache_bytes if limits.pool.snapshots else 0
    host = limits.data * limits.pool.host_pages * limits.pool.page_bytes
    yield "copies", f"at most {size_text(host)} in host memory and {size_text(on_disk)} on disk, for all models there"
    yield "batch", f"{limits.data * limits.max_running} requests, each of at most {limits.max_context} tokens"
    prefill, decode = (", ".join(map(str, sizes)) for sizes in (limits.prefill_buckets, limits.decode_buckets))
    steps = f"prompts of {prefill} tokens" + (f", decoding of {decode} requests" if limits.decodes else "")
    yield "programs", f"{limits.program_count()}, for {steps}, pages and slots"
    budget.check(limits, blueprint.checkpoint.source)


def _mesh(blueprint: Blueprint, together: int) -> Rows:
    """Yield the memory of each device of a mesh, and its traffic to the others."""
    budget, devices, groups = blueprint.budget, blueprint.place.tensor, blueprint.place.data
    if groups > 1:
        yield "groups", f"{groups}, each with all of the above"
    if devices == 1:
        return
    parts = {
        "of weights": budget.weights,
        "for a step": budget.workspace + budget.slots,
        "of pages": blueprint.limits.pool.bytes,
    }
    each = ", ".join(f"{size_text(size // devices)} {part}" for part, size in parts.items())
    yield "on each", f"{each}, {size_text(together // devices)} together, of {devices} devices"
    wire = Wire.of(blueprint.checkpoint.config, devices)
    decode = size_text(wire.per_token + wire.per_sample)
    yield (
        "each sends",
        f"{size_text(wire.per_token)} for a token of a prompt, in {wire.sums} sums over all devices, and {decode} for "
        "a decoded token, with its logits",
    )
