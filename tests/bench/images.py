"""Measure images at the widths of SmolVLM-256M with random weights: the longest pause of a text beside an image.

A text is streamed while an image of several tiles arrives. A tick embeds one tile, so tokens come at most one tile
apart; the ratio compares the longest gap with the time of a tile alone. A second question on the image runs no tower.
"""

import argparse
import asyncio
import json
import shutil
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

import rekindle
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.formats.families.registry import parse_config
from rekindle.formats.families.towers import tower_config
from tests.bench.machine import describe

GOLDEN: Final = Path(__file__).parents[1] / "goldens" / "vision" / "smolvlm"
TEXT: Final = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192,
}  # fmt: skip
TOWER: Final = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 512, "patch_size": 16,
}  # fmt: skip
SIDE: Final = 1024
"""Pixels of the image's sides: four tiles and the whole image."""


def make(directory: Path) -> None:
    """Write a random model of these widths, with the tokenizer of the tiny golden."""
    for path in GOLDEN.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "golden.json":
            shutil.copy(path, directory)
    config = json.loads((directory / "config.json").read_text())
    config["text_config"] |= TEXT
    config["vision_config"] |= TOWER
    config["scale_factor"] = 4
    (directory / "config.json").write_text(json.dumps(config))
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    processor |= {"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": TOWER["image_size"]}}
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    (directory / "processor_config.json").unlink(missing_ok=True)
    text = expected_shapes(parse_config(config, str(directory)))
    tower = tower_config(config, int(TEXT["hidden_size"]), str(directory))
    assert tower is not None, "the golden has a tower"
    generator, tensors = np.random.default_rng(0), dict[str, np.ndarray]()
    for name, shape in {**text, **tower_shapes(tower)}.items():
        stored = name.replace("model.", "model.text_model.", 1) if name in text else name
        numbers = generator.standard_normal(shape, np.float32)
        tensors[stored] = numbers if "norm" in name else 0.02 * numbers
    save_file(tensors, directory / "model.safetensors")


async def ask(session: rekindle.Session, question: Any, image: Any) -> rekindle.Generation:
    """Return the first token of the answer to a question on an image."""
    answer: rekindle.Generation = await session.generate(question, images=[image], max_tokens=1)
    return answer


async def gaps(session: rekindle.Session, image: Any | None) -> list[float]:
    """Return the seconds between tokens of a text; with an image, while a question on it runs beside."""
    question: Any = [{"role": "user", "content": "What is it?"}]
    beside = None if image is None else asyncio.ensure_future(ask(session, question, image))
    times = []
    async for _ in session.stream("one two three", max_tokens=64, ignore_eos=True):
        times.append(perf_counter())
        if beside is not None and beside.done() and len(times) > 8:
            break
    return [later - earlier for earlier, later in pairwise(times)]


async def measure(model: Path, dtype: Any, rounds: int) -> None:
    """Print the time of a tile, and the longest pause of a text beside an image, as their ratio."""
    generator = np.random.default_rng(1)
    async with await rekindle.open(model, dtype=dtype, restore="off", progress=False, precompile="all") as session:
        print(session.stats.programs, "programs")
        question: Any = [{"role": "user", "content": "What is it?"}]
        tiles, pauses, quiet, seconds = [], [], [], []
        for _ in range(rounds):
            image = generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            began = perf_counter()
            answer = await ask(session, question, image)
            seconds.append(perf_counter() - began)
            began = perf_counter()
            again = await ask(session, [{"role": "user", "content": "And now?"}], image)
            tiles.append((seconds[-1] - (perf_counter() - began)) / (len(answer.prompt_token_ids) // 64))
            quiet.append(max(await gaps(session, None)))
            pauses.append(max(await gaps(session, generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8))))
            assert again.cached_tokens > 0
        tile, pause = median(tiles), median(pauses)
        print(f"{dtype}: first token of an image of 5 tiles {median(seconds):.2f} s, a tile {tile:.2f} s")
        print(
            f"longest gap between tokens: {pause:.2f} s beside an image ({pause / tile:.2f} of a tile), "
            f"{median(quiet):.3f} s alone"
        )
        print(
            f"images embedded: {session.stats.scheduler.embedded_pictures} of {session.stats.scheduler.pictures}, "
            f"unexpected compilations: {session.stats.unexpected_compilations}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--dtype", default="bfloat16", help="the dtype of the weights (default: bfloat16)")
    args = parser.parse_args()
    print(describe())
    with TemporaryDirectory() as folder:
        make(Path(folder))
        asyncio.run(measure(Path(folder), args.dtype, args.rounds))
