"""Measure the prefix cache of a model with states: requests with a common beginning, and a chat of ten turns.

The model has a few layers of Qwen3.5-0.8B, with random weights. Each round takes the session with a prefix cache and
the one without in turns, and another salt, to miss the prefixes of earlier rounds.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

import rekindle
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.families.registry import parse_config

SHARED, OWN, NEW, REQUESTS, ROUNDS, TURNS = 512, 16, 16, 16, 5, 10
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def write_model(directory: Path) -> ModelConfig:
    """Write a checkpoint with random weights; return its config."""
    config, rng = parse_config(CONFIG, "the bench"), np.random.default_rng(0)
    tensors = {name: 0.02 * rng.standard_normal(shape, np.float32) for name, shape in expected_shapes(config).items()}
    (directory / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, directory / "model.safetensors")
    return config


def ids(seed: int, count: int) -> list[int]:
    """Return random token ids."""
    token_ids: list[int] = np.random.default_rng(seed).integers(3, CONFIG["vocab_size"], count).tolist()
    return token_ids


def seconds(act: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = perf_counter()
    act()
    return perf_counter() - started


def share(session: rekindle.Session, round_number: int) -> list[tuple[int, ...]]:
    """Return the answers to requests with a common beginning, submitted at once."""
    prompts = [[*ids(0, SHARED), *ids(1 + at, OWN)] for at in range(REQUESTS)]
    handles = [
        session.submit(token_ids=each, max_tokens=NEW, ignore_eos=True, cache_salt=str(round_number))
        for each in prompts
    ]
    return [handle.result().token_ids for handle in handles]


def chat(session: rekindle.Session) -> list[int]:
    """Return the number of computed prompt tokens of each turn of a chat, without the turn's own."""
    prompt, computed = ids(99, 200), []
    for turn in range(TURNS):
        answer = session.generate_sync(token_ids=prompt, max_tokens=50, ignore_eos=True)
        computed.append(len(prompt) - answer.cached_tokens - (20 if turn else 0))
        prompt = [*prompt, *answer.token_ids, *ids(100 + turn, 20)]
    return computed


def measure(directory: Path) -> None:
    """Print the ratio of both sessions, and the tokens that each turn of a chat computes again."""
    options: dict[str, Any] = {"progress": False, "precompile": "all", "restore": "off", "max_running": 16}
    options |= {"prefill_buckets": (64, 512), "decode_buckets": (1, 16), "max_context": 2048}
    with (
        rekindle.open_sync(directory, **options) as cached,
        rekindle.open_sync(directory, **options, prefix_cache=False) as plain,
    ):
        assert share(cached, -1) == share(plain, -1)
        both = [(seconds(partial(share, cached, turn)), seconds(partial(share, plain, turn))) for turn in range(ROUNDS)]
        times = [median(column) for column in zip(*both, strict=True)]
        print(f"{REQUESTS} requests that share {SHARED} tokens: {times[0]:.2f} s, without a cache {times[1]:.2f} s")
        print(f"  {median(one / other for other, one in both):.1f} times as fast")
        print(f"a chat of {TURNS} turns: computed again {chat(cached)[1:]} tokens, pages of {cached.cache.page_size}")
        print(cached.cache)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    with TemporaryDirectory() as folder:
        write_model(Path(folder))
        measure(Path(folder))
