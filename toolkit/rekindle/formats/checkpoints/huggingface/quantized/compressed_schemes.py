"""The config of compressed-tensors: its groups of modules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.quantized.fp8 import block_size
from rekindle.formats.checkpoints.huggingface.quantized.parts.patterns import is_match

FORMATS: Final = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """The storage of the modules in a group of the config.

    Attributes:
        targets: names or classes of modules; after "re:", regexes of names.
        bits: the bits of a number.
        floating: True if the numbers are small floats, not integers.
        symmetric: True if there are no zero points.
        group: the numbers of a group in a row; None for no groups.
        block: rows and columns of a block; None for no blocks.
    """

    targets: tuple[str, ...]
    bits: int
    floating: bool
    symmetric: bool
    group: int | None
    block: tuple[int, int] | None


def schemes_of(options: Mapping[str, Any], source: str) -> tuple[Scheme, ...]:
    """Read the groups of a config.

    Raises:
        UnsupportedModel: a format is not supported.
        CheckpointError: the config is wrong.
    """
    groups = options.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(each, Mapping) for each in groups.values()):
        raise CheckpointError(f"{source}: expected an object config_groups in its quantization, got {groups!r:.80}")
    names = [options.get("format"), *(group.get("format") for group in groups.values())]
    if other := [name for name in names if name not in (*FORMATS, None)]:
        raise UnsupportedModel(
            f"{source}: compressed-tensors in the format {other[0]!r:.80} are not supported, but {', '.join(FORMATS)} "
            "are; open the unquantized model or a GGUF file of it"
        )
    sparsity = options.get("sparsity_config") or {}
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise UnsupportedModel(
            f"{source}: compressed-tensors with sparsity ({sparsity['format']!r:.80}) are not supported; open the "
            "unquantized model or a GGUF file of it"
        )
    if online := sorted(_online_transforms(options.get("transform_config"))):
        raise UnsupportedModel(
            f"{source}: compressed-tensors with transforms of activations ({', '.join(online)}) are not supported; "
            "open the unquantized model or a GGUF file of it"
        )
    return tuple(_scheme(group, source) for group in groups.values() if group.get("weights"))


def _online_transforms(config: Any) -> set[str]:
    """Return the locations of transforms outside of weights; those of weights are in the stored numbers."""
    groups = _values(config.get("config_groups") if isinstance(config, Mapping) else None)
    entries = [entry for group in groups for entry in group.get("apply") or () if isinstance(entry, Mapping)]
    return {str(entry.get("location")) for entry in entries} - {"weight_input", "weight_output"}


def _values(groups: Any) -> list[Mapping[str, Any]]:
    every = groups.values() if isinstance(groups, Mapping) else ()
    return [group for group in every if isinstance(group, Mapping) and isinstance(group.get("apply"), list | None)]


def _scheme(group: Mapping[str, Any], source: str) -> Scheme:
    weights, targets = group["weights"], group.get("targets") or []
    bits = weights.get("num_bits", 8) if isinstance(weights, Mapping) else None
    if not isinstance(bits, int) or not 1 <= bits <= 8 or not isinstance(targets, list):
        raise CheckpointError(f"{source}: a group of its quantization has no targets and bits: {group!r:.200}")
    size, strategy = weights.get("group_size"), weights.get("strategy")
    grouped = strategy in ("group", "tensor_group") or (strategy is None and isinstance(size, int) and size > 0)
    if grouped and not (isinstance(size, int) and size > 0):
        raise CheckpointError(f"{source}: group_size in its quantization must be a positive integer, got {size!r:.80}")
    return Scheme(
        tuple(map(str, targets)),
        bits,
        weights.get("type", "int") == "float",
        weights.get("symmetric", True) is not False,
        size if grouped else None,
        block_size(weights.get("block_structure"), source) if strategy == "block" else None,
    )


def scheme_for(schemes: tuple[Scheme, ...], module: str, source: str) -> Scheme:
    """Return the scheme of a quantized module: by its name first, then by its class, a linear layer.

    Raises:
        CheckpointError: no group of the config has the module.
    """
    for scheme in schemes:
        if any(_matches(target, module, source) for target in scheme.targets):
            return scheme
    for scheme in schemes:
        if any(target in ("Linear", "Embedding") for target in scheme.targets):
            return scheme
    if len(schemes) == 1:  # names of a wrapper differ from those of the file
        return schemes[0]
    targets = ", ".join(target for scheme in schemes for target in scheme.targets) or "none"
    raise CheckpointError(f"{source}: {module} is quantized, and no group of the config has it, but {targets:.200}")


def _matches(target: str, module: str, source: str) -> bool:
    return is_match(target[3:], module, source) if target.startswith("re:") else module == target
