"""Defaults of sampling from a generation_config.json, as vLLM reads it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import InvalidRequest, warn
from rekindle.core.request.checks import preview
from rekindle.formats.model_file import read_json
from rekindle.vllm.sampling_params import SamplingParams

NAMES: Final[Mapping[str, str]] = {
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
    "skip_special_tokens": "skip_special_tokens",
}
"""The parameter for each entry read by vLLM; `do_sample` has none."""
FILE: Final = "generation_config.json"


def generation_config_of(source: Any, of_model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries of a source of `generation_config`.

    Args:
        source: "auto" for the model's, "vllm" for none, or the path of a directory with the file.
        of_model: the entries of the model's own file.

    Raises:
        InvalidRequest: there is no file.
        CheckpointError: it cannot be read.
    """
    if source in ("auto", "vllm"):
        return of_model if source == "auto" else {}
    if isinstance(source, str | Path) and (Path(source) / FILE).is_file():
        return read_json(Path(source) / FILE)
    raise InvalidRequest(
        f'generation_config must be "auto", "vllm" or the path of a directory with {FILE}, got {preview(source)}'
    )


def default_params(entries: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> SamplingParams:
    """Return the parameters of calls without any: vLLM's defaults, with entries of a file, and overrides over them.

    Raises:
        InvalidRequest: an entry has an invalid value.
    """
    if not isinstance(overrides or {}, Mapping):
        raise InvalidRequest(f"override_generation_config must be a mapping, got {preview(overrides)}")
    if others := [name for name in overrides or {} if name not in NAMES]:
        warn(
            f"LLM: override_generation_config has no effect by {', '.join(map(str, others))}, as in vLLM; it reads "
            f"{', '.join(NAMES)}",
            UserWarning,
        )
    values = {**entries, **(overrides or {})}
    fields = {ours: values[name] for name, ours in NAMES.items() if values.get(name) is not None}
    try:
        return SamplingParams.from_optional(**fields)
    except InvalidRequest as error:
        raise InvalidRequest(
            f'the defaults of sampling are invalid: {error}. Correct {FILE}, or give generation_config="vllm" or '
            "override_generation_config"
        ) from error
