"""Sampling defaults from a model's generation_config.json, under the names of `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

_NAMES = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "bad_words_ids": "bad_words",
}
# Unsupported options, each with its neutral value.
_NEUTRAL: Mapping[str, float | None] = {
    "begin_suppress_tokens": None,
    "constraints": None,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_decoder_ids": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "sequence_bias": None,
    "suppress_tokens": None,
    "token_healing": False,
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}


def sampling_defaults(generation_config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a model's recommended sampling options.

    The temperature is 0 unless the file sets `do_sample`; with `do_sample`, it defaults to 1. Other missing options are
    omitted from the result.

    Args:
        generation_config: the content of the file, with transformers' names; null values count as missing.

    Returns:
        Unchecked options of `SamplingParams`, and the sorted names of unsupported entries with an effect on the output.
    """
    values = {name: value for name, value in generation_config.items() if value is not None}
    options = {name: values[key] for key, name in _NAMES.items() if key in values}
    options["temperature"] = values.get("temperature", 1.0) if values.get("do_sample") else 0.0
    # Empty lists, for example of suppressed tokens, have no effect.
    others = (name for name, neutral in _NEUTRAL.items() if values.get(name, neutral) not in (neutral, [], {}))
    return options, tuple(sorted(others))
