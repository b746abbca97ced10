"""Recommendations of generation_config.json are followed in our own names, and the others are named."""

from typing import Any

import pytest

from rekindle.formats.checkpoints.defaults import sampling_defaults

QWEN3 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


def test_a_known_models_file_is_read() -> None:
    assert sampling_defaults(QWEN3) == ({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, ())


@pytest.mark.parametrize(
    ("config", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.6}, 0.0),
        ({"do_sample": False, "temperature": 0.6}, 0.0),
        ({"do_sample": None, "temperature": 0.6}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": None}, 1.0),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
    ],
)
def test_the_likeliest_token_is_taken_unless_the_file_samples(config: dict[str, Any], temperature: float) -> None:
    assert sampling_defaults(config) == ({"temperature": temperature}, ())


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("top_k", 0, "top_k"),
        ("top_k", 50, "top_k"),
        ("top_p", 0.9, "top_p"),
        ("min_p", 0.1, "min_p"),
        ("repetition_penalty", 1.05, "repetition_penalty"),
        ("max_new_tokens", 100, "max_tokens"),
        ("min_new_tokens", 3, "min_tokens"),
        ("stop_strings", ["\n\n"], "stop"),
        ("bad_words_ids", [[1, 2], [3]], "bad_words"),
        ("top_p", "wrong, and for others to say so", "top_p"),
    ],
)
def test_each_entry_becomes_the_option_that_does_it(name: str, value: Any, option: str) -> None:
    assert sampling_defaults({name: value}) == ({"temperature": 0.0, option: value}, ())
    assert sampling_defaults({name: None}) == ({"temperature": 0.0}, ())


@pytest.mark.parametrize(
    ("name", "changes", "neutral"),
    [
        ("num_beams", 4, 1),
        ("no_repeat_ngram_size", 3, 0),
        ("encoder_no_repeat_ngram_size", 3, 0),
        ("encoder_repetition_penalty", 1.2, 1.0),
        ("typical_p", 0.9, 1.0),
        ("epsilon_cutoff", 3e-4, 0.0),
        ("eta_cutoff", 3e-4, 0),
        ("top_h", 0.4, None),
        ("penalty_alpha", 0.6, 0.0),
        ("dola_layers", "high", None),
        ("guidance_scale", 1.5, 1),
        ("min_length", 10, 0),
        ("max_time", 5.0, None),
        ("num_return_sequences", 2, 1),
        ("suppress_tokens", [1], []),
        ("begin_suppress_tokens", [1], []),
        ("forced_bos_token_id", 0, None),
        ("forced_eos_token_id", 2, None),
        ("forced_decoder_ids", [[1, 2]], []),
        ("force_words_ids", [[1]], []),
        ("constraints", ["a"], None),
        ("exponential_decay_length_penalty", [10, 1.1], None),
        ("sequence_bias", [[[1], 2.0]], {}),
        ("token_healing", True, False),
        ("watermarking_config", {"bias": 2.5}, None),
    ],
)
def test_what_cannot_be_honoured_is_named_where_it_changes_something(name: str, changes: Any, neutral: Any) -> None:
    greedy = {"temperature": 0.0}
    assert sampling_defaults({name: changes}) == (greedy, (name,))
    assert sampling_defaults({name: neutral}) == (greedy, ())
    assert sampling_defaults({name: None}) == (greedy, ())


def test_several_that_cannot_be_honoured_come_sorted() -> None:
    assert sampling_defaults({"typical_p": 0.5, "top_k": 3, "num_beams": 2})[1] == ("num_beams", "typical_p")


def test_what_changes_nothing_is_no_concern() -> None:
    config = {
        "_from_model_config": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "transformers_version": "5.23.0",
        "use_cache": False,
        "max_length": 4096,
        "output_scores": True,
        "length_penalty": 2.0,
        "an_unknown_key": [1],
    }
    assert sampling_defaults(config) == ({"temperature": 0.0}, ())
