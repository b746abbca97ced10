"""Any two settings together give the greedy tokens of the defaults, or are refused by name."""

import random
import time
import warnings
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

import rekindle
from rekindle.settings.engine import Settings
from tests.engine.small import SMALL

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "replicas": (2,),
    "route": ("shortest-queue", "round-robin"),
    "implementation": ("xla",),
    "quantize": (None,),
    "weights": ("dequantized",),
    "activations": ("int16",),
    "kv_dtype": ("float32",),
    "page_size": (32,),
    "num_pages": (20,),
    "max_context": (128,),
    "max_running": (1,),
    "max_waiting": (1,),
    "prefill_chunk": (16,),
    "ticks": ("combined", "prefill-first"),
    "deterministic": (True,),
    "policy": ("longest-prefix", "dfs-weight", "longest-output", "random"),
    "prefix_cache": (False,),
    "image_bytes": (0,),
    "host_cache_bytes": (0,),
    "disk_cache_bytes": (0,),
    "weight_cache_bytes": (0,),
    "overlap": (False,),
    "precompile": ("all", "background"),
    "restore": ("off",),
    "max_executables": (8,),
    "max_logprobs": (0,),
    "logits_processor": (lambda logits, row: logits,),
    "sampling_defaults": ("neutral",),
    "watchdog_timeout": (60.0,),
    "decode_steps": (4,),
    "max_adapters": (1,),
    "max_adapter_rank": (2,),
    "draft": ("lookup",),
    "max_prefill_tokens": (32,),
    "prefill_buckets": (None, (16, 64)),
    "decode_buckets": (None, (1, 4)),
}
"""Values beside the defaults, or beside those of `SMALL`, that leave the greedy tokens as they are."""
APART: Final = {
    **dict.fromkeys(("device", "tensor", "data", "mesh"), "they need several devices: the tier mesh"),
    **dict.fromkeys(("prefill", "decode", "prefill_from"), "they need several engines: the tests of hosts and lanes"),
    "dtype": "it changes the numbers, and so may change tokens",
    "mmproj": "it is a file of GGUF",
    "pool_bytes": "it stands for num_pages, which all of these sessions have",
}
"""Settings of no pair, each with its reason."""
BUCKETS: Final = ("prefill_buckets", "decode_buckets")
PAIRS: Final = [
    {one: first, other: second}
    for one, other in combinations(CHOICES, 2)
    for first in CHOICES[one]
    for second in CHOICES[other]
]
SAMPLE: Final = 6
PROMPTS: Final = [[(7 * i * i + 3 * place) % 500 for i in range(20 + 9 * place)] for place in range(3)]
FAMILIES: Final = ("qwen3", "gemma3", "lfm2", "deepseek-v2")


def tokens_of(model: Path, **settings: Any) -> list[tuple[int, ...]]:
    """Return the greedy answers of a session, one of them again from the cache."""
    options: dict[str, Any] = {**SMALL, "precompile": "lazy", "progress": False, **settings}
    if "deterministic" in settings:  # has shapes of its own
        options |= {name: settings.get(name) for name in BUCKETS}
    with rekindle.open_sync(model, **options) as session:
        asked: Any = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}
        answers = list(session.generate_sync(token_ids=PROMPTS, **asked))
        answers.append(session.generate_sync(token_ids=PROMPTS[-1], **asked))
        assert session.stats.unexpected_compilations == 0
        return [answer.token_ids for answer in answers]


def check(pair: dict[str, Any], name: str, families: Path, expected: list[tuple[int, ...]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about settings without effect
        refusal, tokens = "", expected
        try:
            tokens = tokens_of(families / name, **pair)
        except (rekindle.ConfigError, rekindle.InvalidRequest) as error:
            refusal = str(error)
    assert not refusal or any(setting in refusal for setting in pair), f"{name} with {pair}: {refusal}"
    assert tokens == expected, f"{name} with {pair}"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cache")
    directory.chmod(0o700)
    return directory


def test_each_setting_is_in_pairs_or_apart_for_a_reason() -> None:
    assert {each.name for each in fields(Settings)} == CHOICES.keys() | APART.keys()


@pytest.mark.wide
def test_a_sample_of_this_day(families: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))
    day = int(time.time() // 86_400)
    name = FAMILIES[day % len(FAMILIES)]
    expected = tokens_of(families / name, restore="off")
    for pair in random.Random(day).sample(PAIRS, SAMPLE):
        check(pair, name, families, expected)


@pytest.mark.deep
@pytest.mark.parametrize("name", FAMILIES)
def test_all_pairs(name: str, families: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))
    expected = tokens_of(families / name, restore="off")
    for pair in PAIRS:
        check(pair, name, families, expected)
