"""Mistral: a Llama with a window in all layers, if the config has one."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_llama, with_windows


def read(keys: Keys) -> ModelConfig:
    """Read a Mistral."""
    model = read_llama(keys)
    return replace(model, layers=with_windows(keys, model.layers))
