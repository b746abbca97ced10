"""Session of an LLM: vLLM's keywords as settings of `open`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import InvalidRequest, warn
from rekindle.core.request.checks import preview

DTYPES: Final[Mapping[str, str | None]] = {
    "auto": None,
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}
"""The dtype of `open` for a dtype of vLLM; "auto" is the one for this machine."""
KV_DTYPES: Final[Mapping[str, str | None]] = {
    "auto": None,
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
}
OF_FILES: Final = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "gguf", "modelopt", "mxfp4"}
)
"""Forms of quantized files, which are read from the files themselves."""


def settings_of(
    *,
    dtype: Any,
    quantization: str | None,
    kv_cache_dtype: str,
    tensor_parallel_size: int,
    data_parallel_size: int,
    kv_cache_memory_bytes: int | None,
    max_model_len: int | None,
    max_num_seqs: int | None,
    enable_prefix_caching: bool | None,
    max_logprobs: int | None,
    max_loras: int | None,
    max_lora_rank: int | None,
    speculative_config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the settings of `open` for vLLM's keywords.

    Raises:
        InvalidRequest: a keyword would change answers in a way without an equivalent.
    """
    if quantization is not None and quantization not in OF_FILES:
        raise InvalidRequest(
            f"quantization={quantization!r} makes other numbers of a model's: rekindle.open(model, quantize='int8') is "
            "the equivalent here; forms of quantized files need no argument"
        )
    settings: dict[str, Any] = {
        "dtype": _choice("dtype", str(dtype).removeprefix("torch."), DTYPES),
        "kv_dtype": _choice("kv_cache_dtype", kv_cache_dtype, KV_DTYPES),
        "tensor": tensor_parallel_size if tensor_parallel_size > 1 else None,
        "data": data_parallel_size if data_parallel_size > 1 else None,
        "pool_bytes": kv_cache_memory_bytes,
        "max_context": max_model_len,
        "max_running": max_num_seqs,
        "prefix_cache": enable_prefix_caching,
        "max_logprobs": max_logprobs,
        "max_adapters": max_loras,
        "max_adapter_rank": max_lora_rank,
        "draft": _draft_of(speculative_config),
    }
    return {name: value for name, value in settings.items() if value is not None}


_DRAFTS: Final = {
    "ngram": "lookup",
    **dict.fromkeys(("mtp", "deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"), "mtp"),
}


def _draft_of(speculative: Mapping[str, Any] | None) -> str | None:
    """Return the source of drafts for vLLM's speculative decoding, with a note on methods without an effect here."""
    if speculative is None:
        return None
    if (source := _DRAFTS.get(speculative.get("method", ""))) is not None:
        return source
    warn(
        f"LLM: speculative_config={preview(dict(speculative))} changes no answer, and has no effect here; "
        '{"method": "ngram"} drafts by lookup, and {"method": "mtp"} by the head of a model',
        UserWarning,
    )
    return None


def template_of(source: Path | str | None) -> str | None:
    """Return the source of a chat template, given itself or by the path of its file."""
    if source is None or (isinstance(source, str) and "{" in source):
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"chat_template must be a Jinja source or the path of one: {error}") from error


def _choice(name: str, value: str, choices: Mapping[str, str | None]) -> str | None:
    if value not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)} here, got {preview(value)}")
    return choices[value]
