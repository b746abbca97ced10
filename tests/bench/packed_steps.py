"""Measure bare steps with packed weights against float32, bfloat16, and llama.cpp on the same file.

`python -m tests.bench.packed_steps --peer PYTHON`, where PYTHON has the package `xllamacpp`. Steps of all forms run in
turns, round after round, and the peer in each round; the fastest of each counts.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import jax.numpy as jnp
import numpy as np

from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels.blocks import Blocks
from tests.bench.contenders import ContenderEnded
from tests.bench.machine import cores
from tests.bench.steps import BareStep
from tests.bench.workload import MODEL

CASES: Final = {"1 row": (0, 1, 200), "8 rows": (0, 8, 200), "32 rows": (0, 32, 200), "prompt of 128": (128, 0, 0)}
REPEATS: Final = 8


def forms_of(checkpoint: Checkpoint) -> dict[str, WeightForm]:
    """Return the forms to compare, by name."""
    (kinds, _), wide = kinds_in(checkpoint.tensors, expected_shapes(checkpoint.config), ()), jnp.dtype("float32")
    return {
        "float32": WeightForm(wide),
        "bfloat16": WeightForm(jnp.dtype("bfloat16")),
        "packed int16": WeightForm(wide, kinds, "int16"),
        "packed int8": WeightForm(wide, kinds, "int8"),
        "packed int16, bfloat16 pages": WeightForm(jnp.dtype("bfloat16"), kinds, "int16"),
        "packed int8, bfloat16 pages": WeightForm(jnp.dtype("bfloat16"), kinds, "int8"),
        "packed bfloat16, such pages": WeightForm(jnp.dtype("bfloat16"), kinds, "bfloat16"),
    }


def peer_seconds(python: str, file: Path) -> dict[str, float]:
    """Return the peer's seconds, by the names of the cases.

    Raises:
        ContenderEnded: it crashes on the file, and so has no speed.
    """
    script = Path(__file__).with_name("peer_xllamacpp.py")
    command = [python, str(script), str(file), "--threads", str(cores())]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise ContenderEnded("llama.cpp", run.returncode, run.stderr[-4000:])
    answer = json.loads(run.stdout.splitlines()[-1])
    return {"1 row": answer["step"], "prompt of 128": answer["prompt"]}


def stored_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of a model's tensors as its file has them."""
    tensors = [checkpoint.tensors[name] for name in expected_shapes(checkpoint.config)]
    return sum(np.asarray(each.data if isinstance(each, Blocks) else each).nbytes for each in tensors)


def main() -> None:
    """Print the seconds of all forms, and their ratios to bfloat16 and to the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python with xllamacpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.model)
    forms, best = forms_of(checkpoint), dict[tuple[str, str], float]()
    steps = {
        (name, case): BareStep(form, *sizes, checkpoint)
        for case, sizes in CASES.items()
        for name, form in forms.items()
    }

    def keep(place: tuple[str, str], seconds: float) -> None:
        best[place] = min(best.get(place, seconds), seconds)

    for _ in range(arguments.rounds):
        for place, step in steps.items():
            keep(place, min(step.seconds() for _ in range(REPEATS)))
        try:
            for case, seconds in peer_seconds(arguments.peer, checkpoint.files[0]).items() if arguments.peer else ():
                keep(("llama.cpp", case), seconds)
        except ContenderEnded as error:
            print(f"{error}\nllama.cpp crashed on {checkpoint.files[0].name} ({error.reason}): it has no speed here")
            best = {place: seconds for place, seconds in best.items() if place[0] != "llama.cpp"}
            arguments.peer = None
    for (name, case), seconds in sorted(best.items(), key=lambda item: list(CASES).index(item[0][1])):
        ratios = [
            f"{best[other, case] / seconds:5.2f} x {other}"
            for other in ("bfloat16", "float32", "llama.cpp")
            if (other, case) in best
        ]
        print(f"{case:14} {name:29} {seconds * 1e3:8.2f} ms  {'  '.join(ratios)}")
    for name in forms:
        size = steps[name, "1 row"].weight_bytes
        print(f"{name:29} {size / 1e6:7.1f} MB of weights, {size / stored_bytes(checkpoint):.3f} of the file's tensors")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
