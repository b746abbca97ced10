"""Reader of LoRA adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

from rekindle.core.errors import CheckpointError, ModelNotFound, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.formats.checkpoints.huggingface.names import TEXT_PREFIXES
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors
from rekindle.formats.lora import Array, Lora, LowRank
from rekindle.formats.model_file import damage, is_present, read_json
from rekindle.formats.patterns import match_all

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_TWO: Final = "these are two adapters; give one"
GIVEN: Final = "the given adapter"
"""Source of an adapter given as arrays, in messages."""
_TENSOR: Final = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?(?:\.weight)?")
_EMBEDDING: Final = re.compile(r".*(?:embed_tokens|lm_head)(?:\.base_layer)?\.weight")
"""Names of whole embeddings: PEFT saves them where they are targets, or where the vocabulary was resized."""
_FOREIGN: Final = {
    "lora_magnitude_vector": "it is DoRA",
    "lora_embedding_": "it changes embeddings",
    "modules_to_save": "it replaces whole modules (modules_to_save)",
    "trainable_tokens": "it changes the embeddings of some tokens",
    ".base_layer": "it has weights of the model itself",
    ".bias": "it changes biases",
    ".lora_": "it is a LoRA over another kind of weight",
}
"""Reasons to refuse an adapter, by a part of a tensor's name."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "use_dora": (False,),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "use_bdlora": (None, False),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "megatron_config": (None,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
}
"""The accepted values of entries with an effect beyond plain LoRA; other ways to begin change the model's weights."""
_READ: Final = frozenset(
    {
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "fan_in_fan_out",
        "ensure_weight_tying",
    }
)
_IDLE: Final = frozenset(
    {
        "task_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "velora_config",
        "qalora_group_size",
        "runtime_config",
    }
)
"""Entries about the model's name, about training, or beside another entry that is refused."""
_LAYER: Final = r"(?:.*\.)?[^.]*\.(?P<layer>\d+)\..*"
"""Pattern of the modules in layers, as in PEFT."""


def config_of(source: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the configuration of an adapter's directory.

    Raises:
        ModelNotFound: there is no such directory, or it has no adapter.
        CheckpointError: the configuration is no JSON object, or a file is a link to a file that is gone.
    """
    directory = Path(source).expanduser()
    missing = [name for name in (CONFIG, WEIGHTS) if not is_present(directory / name)]
    if missing:
        raise ModelNotFound(
            f"{source} has no {' and no '.join(missing)}: give the path of a directory with an adapter saved by "
            "PEFT's save_pretrained"
        )
    return read_json(directory / CONFIG)


def rank_of(config: Mapping[str, Any], source: str) -> int:
    """Return the largest rank in a configuration.

    Raises:
        CheckpointError: there is no rank, or one is no positive integer.
    """
    _require(config, ("r",), source)
    ranks = [config["r"], *_patterns(config, "rank_pattern", source).values()]
    if not all(isinstance(rank, int) and not isinstance(rank, bool) and rank > 0 for rank in ranks):
        raise CheckpointError(f"{source}: ranks must be positive integers, got {ranks!r:.80}")
    return int(max(ranks))


def read_adapter(source: str | os.PathLike[str], model: ModelConfig) -> Lora:
    """Read an adapter from its directory.

    Raises:
        ModelNotFound: there is no such directory, or it has no adapter.
        CheckpointError: a file is truncated or corrupt, or the tensors and the configuration contradict each other.
        UnsupportedModel: the adapter is more than plain LoRA.
    """
    with damage(source):
        config, file = config_of(source), open_safetensors(Path(source).expanduser() / WEIGHTS)
        return adapter_of({name: file.loader(name) for name in file.shapes}, config, model, str(source))


def given_adapter(tensors: Mapping[str, Any], config: Mapping[str, Any], model: ModelConfig) -> Lora:
    """Return an adapter from arrays of numpy or JAX by name, and a configuration; raises as `read_adapter` does."""
    loaders = {name: (lambda array=array: np.asarray(array)) for name, array in tensors.items()}
    return adapter_of(loaders, config, model, GIVEN)


def adapter_of(
    tensors: Mapping[str, Callable[[], Any]], config: Mapping[str, Any], model: ModelConfig, source: str
) -> Lora:
    """Return an adapter from the loaders of its tensors; raises as `read_adapter` does."""
    _check_config(config, model, source)
    sides: dict[str, dict[str, Array]] = {}
    for name, load in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or any(mark in name for mark in ("modules_to_save", ".base_layer")):
            raise UnsupportedModel(f"{source}: {name} is not supported: {_reason(name)}")
        pair = sides.setdefault(match["module"], {})
        if match["side"] in pair:
            raise CheckpointError(f"{source}: {name} is there twice, by two forms of its name: {_TWO}")
        pair[match["side"]] = _real(np.asarray(load()), name, source)
    if not sides:
        raise CheckpointError(f"{source}: it has no tensors of a LoRA, such as ...q_proj.lora_A.weight")
    names = _names(sides, model)
    if twice := next((name for name, count in Counter(names.values()).items() if count > 1), None):
        raise CheckpointError(f"{source}: {twice} is there twice, by two forms of its name: {_TWO}")
    if config.get("ensure_weight_tying") and model.names.head in names.values():
        raise UnsupportedModel(
            f"{source}: its ensure_weight_tying is true, and it changes {model.names.head}, so it changes the "
            "embeddings too: train it with ensure_weight_tying=False, or without this target"
        )
    return Lora(source, {names[module]: _part(module, pair, config, source) for module, pair in sides.items()})


def _reason(name: str) -> str:
    """Return the reason to refuse a tensor, and its cure."""
    if _EMBEDDING.fullmatch(name):
        return (
            "it is a whole embedding, which PEFT adds by itself if it is a target or if the vocabulary was resized. If "
            "it was not trained, save the adapter by save_pretrained(..., save_embedding_layers=False)"
        )
    reason = next((reason for mark, reason in _FOREIGN.items() if mark in name), "it is no part of a LoRA")
    return f"{reason}. Only plain LoRA of linear layers is"


def _real(array: Array, name: str, source: str) -> Array:
    if jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer):
        return array
    raise CheckpointError(f"{source}: {name} must have real numbers, and is {array.dtype}")


def _require(config: Mapping[str, Any], names: Iterable[str], source: str) -> None:
    """Require entries of a configuration, since a default of another tool would scale the adapter otherwise."""
    if missing := [name for name in names if config.get(name) is None]:
        raise CheckpointError(
            f"{source}: its configuration has no {' and no '.join(missing)}; it needs at least r and lora_alpha, as in "
            f"PEFT's {CONFIG}"
        )


def _check_config(config: Mapping[str, Any], model: ModelConfig, source: str) -> None:
    _require(config, ("r", "lora_alpha"), source)
    for name, accepted in _NEUTRAL.items():
        value = config.get(name)
        if name in config and value is not None and value not in accepted:
            raise UnsupportedModel(
                f"{source}: its {name} is {value!r:.80}, and only plain LoRA is supported: train it with "
                f"{name}={accepted[0]!r}"
            )
    for name, value in config.items():
        if name not in _NEUTRAL and name not in _READ and name not in _IDLE and value not in (None, False, "", [], {}):
            raise UnsupportedModel(
                f"{source}: its {name} is {value!r:.80}, and this entry is unknown, so it might change the answers. "
                "Remove it if it is about training alone"
            )
    for name in ("use_rslora", "fan_in_fan_out", "ensure_weight_tying"):
        if not isinstance(config.get(name, False), bool | None):
            raise CheckpointError(f"{source}: {name} must be true or false, got {config[name]!r:.80}")
    if config.get("fan_in_fan_out") and not model.names.transposed:
        raise UnsupportedModel(
            f"{source}: its fan_in_fan_out is true, for projections stored as (in, out), and this model's are (out, in)"
        )
    rank_of(config, source)


def _part(module: str, pair: Mapping[str, Array], config: Mapping[str, Any], source: str) -> LowRank:
    """Return the summand of one module."""
    if set(pair) != {"A", "B"}:
        raise CheckpointError(f"{source}: {module} has lora_{min(pair)} alone; the file is incomplete: fetch it again")
    a, b = (pair[side].astype(np.float32) for side in "AB")
    if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
        raise CheckpointError(f"{source}: {module} has lora_A {a.shape} and lora_B {b.shape}, no matrices of one rank")
    rank = _by_pattern(config, "rank_pattern", module, config["r"], source)
    if len(a) != rank:
        raise CheckpointError(f"{source}: {module} has rank {len(a)}, and by {CONFIG} it should be {rank}")
    _check_target(module, config, source)
    alpha = _by_pattern(config, "alpha_pattern", module, config["lora_alpha"], source)
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise CheckpointError(f"{source}: lora_alpha must be a number, got {alpha!r:.80}")
    return LowRank(a, b, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def _patterns(config: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    patterns = config.get(name) or {}
    if not isinstance(patterns, Mapping):
        raise CheckpointError(f"{source}: {name} must map patterns to numbers, got {patterns!r:.80}")
    return patterns


def _by_pattern(config: Mapping[str, Any], name: str, module: str, default: Any, source: str) -> Any:
    """Return the value of the first pattern for the end of a module's name, else the default."""
    for pattern, value in _patterns(config, name, source).items():
        if match_all(rf"(?:.*\.)?(?:{pattern})", module, f"{source}: {name}"):
            return value
    return default


def _check_target(module: str, config: Mapping[str, Any], source: str) -> None:
    """Require a module with tensors to be a target of the configuration."""
    target, excluded = config.get("target_modules"), config.get("exclude_modules")
    is_target = target is None or target == "all-linear" or _names_module(target, module, source)
    is_target &= _in_layers(module, config, source)
    if not is_target or (excluded and _names_module(excluded, module, source)):
        raise CheckpointError(
            f"{source}: it has tensors of {module}, which is no target by {CONFIG}: its files are of two adapters"
        )


def _in_layers(module: str, config: Mapping[str, Any], source: str) -> bool:
    """Return True if a module is in one of the layers of `layers_to_transform`, or if there is no such entry."""
    layers, patterns = config.get("layers_to_transform"), config.get("layers_pattern")
    if layers is None or layers == []:
        return True
    patterns = [patterns] if isinstance(patterns, str) else patterns or []
    forms = [rf"(?:.*\.)?{pattern}\.(?P<layer>\d+)\..*" for pattern in patterns] or [_LAYER]
    place = f"{source}: layers_pattern"
    numbers = [int(match["layer"]) for form in forms if (match := match_all(form, module, place)) is not None]
    return any(number in (layers if isinstance(layers, list) else [layers]) for number in numbers[:1])


def _names_module(target: Any, module: str, source: str) -> bool:
    """Return True if a module is in a list of ends of names, or matches a regular expression as a whole."""
    if isinstance(target, str):
        return match_all(target, module, f"{source}: target_modules") is not None
    if not isinstance(target, Iterable) or not all(isinstance(each, str) for each in target):
        raise CheckpointError(f"{source}: target_modules must be names or a regular expression, got {target!r:.80}")
    return any(module == each or module.endswith(f".{each}") for each in target)


def _names(modules: Iterable[str], model: ModelConfig) -> dict[str, str]:
    """Return the model's name of each module; modules of a text model inside of another lose the outer prefix."""
    own, first = model.names.base, model.names.layers

    def name_of(module: str) -> str:
        candidates = (own + module.removeprefix(prefix) for prefix in TEXT_PREFIXES if module.startswith(prefix))
        inside = next((each for each in candidates if each.startswith(f"{first}.")), module)
        head = model.names.head
        return head if module.endswith(f".{head}") else module if module.startswith(f"{first}.") else inside

    return {module: name_of(module) for module in modules}
