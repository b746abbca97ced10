"""The sampling options that a model recommends in its generation_config.json, by the names of `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

_OURS = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "bad_words_ids": "bad_words",
}
# Options that are not implemented, each with the value that changes nothing.
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
    """Return the sampling options that a model recommends.

    Without `do_sample` the temperature is 0, whatever the file says; with it, the default temperature is 1. Other
    options that the file does not name are left out.

    Args:
        generation_config: the content of the file, with transformers' names; null stands for an absent entry.

    Returns:
        Options of `SamplingParams`, whose values are not yet checked, and the sorted names of entries that would change
        what is generated but are not implemented.
    """
    given = {name: value for name, value in generation_config.items() if value is not None}
    options = {ours: given[name] for name, ours in _OURS.items() if name in given}
    options["temperature"] = given.get("temperature", 1.0) if given.get("do_sample") else 0.0
    # Empty lists, of tokens to suppress for example, change nothing.
    others = (name for name, neutral in _NEUTRAL.items() if given.get(name, neutral) not in (neutral, [], {}))
    return options, tuple(sorted(others))
