"""The loop of decode steps takes no memory for converted weights."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs, temporary_bytes
from rekindle.core.device.state import Sizes
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint

VOCABULARY, ROWS = 1 << 16, 2


@pytest.mark.wide
def test_xla_converts_no_weight_before_the_loop(families: Path) -> None:
    config = replace(open_checkpoint(families / "llama-tied").config, vocab_size=VOCABULARY)
    form, place = WeightForm(jnp.dtype(jnp.bfloat16)), Place((jax.devices()[0],))
    programs = Programs(config, Sizes(9, 16, 4, ROWS, 2), form, place, "xla")
    bytes_ = temporary_bytes(programs.compile(Bucket(0, ROWS)))
    assert bytes_ is not None
    assert bytes_ < 4 * VOCABULARY * config.hidden_size, "room for the embedding in float32"
