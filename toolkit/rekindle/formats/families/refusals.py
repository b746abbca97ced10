"""Error messages for unsupported models, with special parts and alternatives."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.formats.families.nearest import nearest
from rekindle.formats.families.special import ENCODERS, special_part


def architecture_refusal(source: str, names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> str:
    """Return the message for an unsupported architecture, with the nearest supported model.

    Args:
        source: path of the config.
        names: the names of the architecture.
        configs: the config, and the config of the text model in it.
    """
    types = [str(config["model_type"]) for config in configs if config.get("model_type")]
    if not names and not types:
        return f'{source} names no family: take the file from the model\'s repository, with its "architectures"'
    special = special_part([*names, *types], configs)
    label = ", ".join(names) or f"model_type {types[0]}"
    if len(types) > 1 and types[-1] != types[0]:
        label += f", with text of the type {types[-1]}"
    return (
        f"{source}: the architecture ({label}) is not supported{f': it {special}' if special else ''}. "
        f"The nearest that opens: {nearest([*types[1:], *names, *types])}. {_NO_FAMILY if special else _FAMILY}"
    )


_FAMILY: Final = (
    "If its layers differ from a supported family only by names and sizes, pass open(..., family=Family(...)), as in "
    "tutorials/09_a_model_family.ipynb"
)
_NO_FAMILY: Final = "A family= of your own does not help, because the decoder has no such part"


def gguf_refusal(source: str, name: object) -> str:
    """Return the message for an unsupported architecture of a GGUF file."""
    special = special_part([str(name)])
    reason = f": it {special}" if special else ""
    return (
        f"{source}: the architecture {name!r:.80} is not supported in GGUF files{reason}. The nearest that opens: "
        f"{nearest([str(name)])}{_SAFETENSORS if re.search(ENCODERS, str(name).lower()) else ''}"
    )


_SAFETENSORS: Final = ". Open the safetensors of an encoder"
