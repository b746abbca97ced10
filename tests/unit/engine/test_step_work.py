"""A step computes no more than before: the costly operations of each family's lowered step match the record."""

import json
import os
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import pytest

from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.state import Sizes
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.families import families_by_tier

RECORD: Final = Path(__file__).parents[2] / "goldens" / "steps.json"
COSTLY: Final = (
    "dot_general", "gather", "scatter", "sort", "while", "exponential", "logistic", "tanh", "rsqrt", "sqrt", "cosine",
    "sine", "power", "concatenate", "dynamic_slice", "dynamic_update_slice", "transpose", "reduce",
)  # fmt: skip
"""The counted operations; all others are elementwise, and fused."""
CHEAP: Final = ("deepseek-v3", "gemma4-e", "llama-tied")


def work(family: str, families: Path) -> dict[str, int]:
    """Count the costly operations of a step with prefill blocks and decode rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a head that contradicts the config
        config = open_checkpoint(families / family).config
    place = Place((jax.devices()[0],))
    programs = Programs(config, Sizes(9, 16, 8, 4, 3), WeightForm(jnp.dtype("float32")), place, "xla")
    counts = Counter(re.findall(r"stablehlo\.(\w+)", programs.lower(Bucket(32, 4)).as_text()))
    return {name: counts[name] for name in COSTLY if counts[name]}


@pytest.mark.parametrize("family", families_by_tier(CHEAP))
def test_a_step_has_the_costly_operations_on_record(family: str, families: Path) -> None:
    record = json.loads(RECORD.read_text())
    counts = work(family, families)
    if os.environ.get("REKINDLE_WRITE_STEPS"):
        RECORD.write_text(json.dumps(dict(sorted((record | {family: counts}).items())), indent=1) + "\n")
        return
    if record["jax"] != jax.__version__:  # other versions of JAX lower functions in other ways
        pytest.skip(f"recorded with jax {record['jax']}")
    assert counts == record[family]
