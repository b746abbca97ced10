"""The table of families in `families.json`: what was tested, and the published sizes by the keys of their configs.

A row of a model with images is of a family in `TOWERS`, and its sizes have the keys of both models. Or it has a
"wrapper", the "model_type" of the whole model around the text model, and sizes with a "vision_config" beside the keys
of the text model. Both models are counted.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from rekindle.assembly.counts import active_parameters, parameters
from rekindle.assembly.fitting import BYTES
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.formats.families.registry import FAMILIES, parse_config
from rekindle.formats.families.towers import tower_config, tower_kind

_CONTEXT: Final = 32_768
"""The context length of sizes without one: it is required, but no count depends on it without learned positions."""
_SIZE_IN_NAME: Final = re.compile(
    r"-r?((?:\d+x|e)?\d+(?:[._]\d+)?[bm](?:-a\d+[bm])?)(?=-|$)(?!-\d+[be])", re.IGNORECASE
)
"""Such as 8B, E4B, 1_6b, 8x7B and 30B-A3B; of an active and a total size (1B-7B), the latter. "17B-16E" is none."""


@dataclass(frozen=True, slots=True)
class PublishedSize:
    """A published size of a family.

    Attributes:
        name: its id on the Hugging Face hub.
        parameters: the number of its parameters.
        active: the number of parameters used for a token.
        numbers_per_token: the size of a token's keys and values in all layers.
        state_bytes: the bytes of a request's states.
    """

    name: str
    parameters: int
    active: int
    numbers_per_token: int
    state_bytes: int = 0

    @property
    def label(self) -> str:
        """The size in its name, such as "30B-A3B", else the number of its parameters."""
        match = _SIZE_IN_NAME.search(self.name)
        return match[1].upper().replace("_", ".").replace("X", "x") if match else count_text(self.parameters)

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of its weights."""
        return BYTES[dtype] * self.parameters

    def bytes_with(self, tokens: int, dtype: str) -> int:
        """Return the bytes of weights, keys and values, and of states, with so many tokens of context."""
        return self.weight_bytes(dtype) + BYTES[dtype] * self.numbers_per_token * tokens + self.state_bytes


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family of the table.

    Attributes:
        family: its entry in `families.registry.FAMILIES`, or in `families.towers.TOWERS`.
        name: its name for people.
        tested: the features covered by its tests.
        architecture: its name in "architectures" of `config.json`.
        gguf: the architectures of its GGUF files.
        sizes: its published sizes, smallest first.
        tower: the kind of its vision tower; None for a text model.
    """

    family: str
    name: str
    tested: str
    architecture: str
    gguf: tuple[str, ...]
    sizes: tuple[PublishedSize, ...]
    tower: str | None = None

    @property
    def reads_images(self) -> bool:
        """True for a model with a vision tower."""
        return self.tower is not None


@cache
def rows() -> tuple[FamilyRow, ...]:
    """Return the table, in the order of the file."""
    return tuple(_row(family, entry) for family, entry in entries().items())


def entries() -> dict[str, Any]:
    """Return the entries of the file by family."""
    table: dict[str, Any] = json.loads(files(__package__).joinpath("families.json").read_text(encoding="utf-8"))
    return table


def count_text(count: int) -> str:
    """Format a number of parameters with three digits, such as "1.24B"."""
    unit, size = ("B", 1e9) if count >= 0.9995e9 else ("M", 1e6)
    value = count / size
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"


def _row(family: str, entry: Mapping[str, Any]) -> FamilyRow:
    common = {"model_type": family, "max_position_embeddings": _CONTEXT} | entry.get("config", {})
    wrapper = entry.get("wrapper")
    configs = {name: _wrapped(wrapper, common | config) for name, config in entry["sizes"].items()}
    sizes = (_size(name, config) for name, config in configs.items())
    ordered = tuple(sorted(sizes, key=lambda size: size.parameters))
    architecture = entry.get("architecture") or FAMILIES[family].architecture
    tower = next(filter(None, map(tower_kind, configs.values())), None)
    return FamilyRow(family, entry["name"], entry["tested"], architecture, tuple(entry["gguf"]), ordered, tower)


def _wrapped(wrapper: str | None, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the whole model around a text model; the same without a wrapper or a tower."""
    if wrapper is None or "vision_config" not in settings:
        return settings
    text = {key: value for key, value in settings.items() if key != "vision_config"}
    return {"model_type": wrapper, "text_config": text, "vision_config": settings["vision_config"]}


def _size(name: str, settings: Mapping[str, Any]) -> PublishedSize:
    config = parse_config(settings, name)
    tower = tower_config(settings, config.hidden_size, name)
    count = parameters(config)
    active = active_parameters(config, count)
    of_tower = 0 if tower is None else sum(map(math.prod, tower_shapes(tower).values()))
    return PublishedSize(name, count + of_tower, active + of_tower, config.numbers_per_token, config.state_bytes)
