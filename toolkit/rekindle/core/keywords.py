"""Keywords: signatures of functions with `**options`, and hints for the names of other libraries."""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

from rekindle.core.tracebacks import with_short_traceback

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ELSEWHERE: Final = {
    "max_tokens": ("max_new_tokens", "max_completion_tokens", "max_length", "n_predict", "num_predict"),
    "max_output_tokens": ("max_tokens", "max_completion_tokens", "max_new_tokens"),  # over HTTP alone
    "min_tokens": ("min_new_tokens", "min_length"),
    "temperature": ("do_sample", "temp"),
    "repetition_penalty": ("repeat_penalty",),
    "n": ("best_of", "num_return_sequences", "num_samples"),
    "stop": ("stop_sequences", "stop_strings", "stop_words"),
    "stop_token_ids": ("eos_token_id",),
    "token_ids": ("prompt_token_ids", "input_ids"),
    "system": ("instructions", "system_message", "system_prompt"),
    "messages": ("chat_history", "history"),
    "when_full": ("context_overflow_policy", "context_shift", "on_full", "overflow", "truncation_strategy"),
    "images": ("image", "multi_modal_data"),
    "tools": ("functions",),
    "tool_choice": ("function_call",),
    "thinking_budget": ("budget_tokens", "max_thinking_tokens"),
    "adapter": ("adapter_name", "lora", "lora_request"),
    "logprobs": ("top_logprobs", "n_probs"),
    "prompt_logprobs_from": ("logprob_start_len", "prompt_logprobs_start"),
    "seed": ("random_seed", "random_state"),
    "bad_words": ("bad_words_ids",),
    "json_schema": ("format", "guided_json", "response_format", "response_model", "schema", "output_type"),
    "regex": ("guided_regex", "pattern"),
    "choice": ("guided_choice", "choices"),
    "grammar": ("guided_grammar", "ebnf", "lark"),
    "device": ("device_map",),
    "dtype": ("torch_dtype",),
    "kv_dtype": ("cache_type_k", "cache_type_v", "kv_cache_dtype", "type_k", "type_v"),
    "tensor": ("tensor_parallel_size", "tp_size", "tp", "num_devices", "num_gpus"),
    "data": ("data_parallel_size", "dp_size"),
    "mesh": ("device_mesh",),
    "max_context": ("max_model_len", "max_seq_len", "max_seq_length", "n_ctx", "num_ctx"),
    "max_running": ("max_num_seqs", "max_batch_size", "batch_size"),
    "max_prefill_tokens": ("max_num_batched_tokens", "n_batch"),
    "num_pages": ("num_gpu_blocks_override",),
    "pool_bytes": ("gpu_memory_utilization", "mem_fraction_static", "kv_cache_memory_bytes"),
    "page_size": ("block_size",),
    "prefix_cache": ("enable_prefix_caching",),
    "quantize": ("quantization", "quantisation", "quantization_config", "load_in_4bit", "load_in_8bit"),
    "host_cache_bytes": ("swap_space", "cpu_offload_gb"),
    "draft": ("assistant_model", "draft_model", "speculative_config", "speculative_model"),
    "chat_template": ("chat_format",),
    "max_adapters": ("max_loras",),
    "max_adapter_rank": ("max_lora_rank",),
}
"""Names of the same parameters in transformers, vLLM, llama.cpp, Ollama and OpenAI's API, by Rekindle's name."""
_OF_TEMPLATES: Final = {
    "add_generation_prompt": "True",
    "documents": "[...]",
    "enable_thinking": "False",
    "reasoning_effort": '"low"',
    "think": "False",
    "thinking": "False",
}
"""Variables of chat templates with a value; in other APIs they are keywords."""
_OTHERWISE: Final = {
    ("messages", "prompts", "inputs", "input", "text", "texts"): "the prompt is the first argument, and has no name",
    ("system", "system_prompt"): 'begin the messages with {"role": "system", "content": ...}',
    ("stream", "streamer"): "session.stream() gives the pieces as they come",
    ("callback", "on_token"): "session.stream() gives the pieces as they come",
    (
        "extra_body", "gen_kwargs", "generate_kwargs", "generation_config", "generation_kwargs", "gen_config",
        "model_kwargs", "options", "params", "sampling_params",
    ): "its entries are keywords here: give each by its name, or a dict of them as **entries",
    ("model", "model_id", "model_name", "model_path", "path", "pretrained_model_name_or_path", "repo_id"): (
        "the model is the first argument of rekindle.open()"
    ),
    ("filename", "gguf_file"): "a GGUF file of the hub is opened as 'owner/name/FILE.gguf'",
    ("gpu_layers", "main_gpu", "n_gpu_layers", "ngl", "num_gpu"): (
        'all layers are on one device: device="gpu" or device="cpu"'
    ),
    ("n_threads", "n_threads_batch", "num_thread", "num_threads", "threads"): (
        "the kernels use the cores that the process may use, which `taskset` limits"
    ),
    ("adapter", "enable_lora", "lora", "loras", "lora_adapter", "lora_dir", "lora_path", "lora_paths", "lora_modules",
     "peft_config", "peft_model_id"): (
        'rekindle.open(model, adapters={"name": "DIRECTORY"}) loads adapters'
    ),
    ("tokenizer", "tokenizer_mode", "tokenizer_path"): "the tokenizer comes with the model: leave it out",
    ("num_beams", "beam_width", "early_stopping", "length_penalty"): "there is no beam search; n=4 gives four answers",
    ("dry_multiplier", "mirostat", "mirostat_tau", "tfs_z", "top_a", "typical_p", "xtc_probability"): (
        "there is no such sampling; temperature, top_k, top_p and min_p are"
    ),
    ("attention_mask", "pad_token_id", "padding", "return_tensors", "truncation"): (
        "prompts are not padded: leave it out"
    ),
    ("echo", "return_full_text"): "an answer is without its prompt, which is answer.prompt: leave it out",
    ("batch_size", "concurrency", "max_workers", "num_workers"): "the engine forms the batches: leave it out",
    ("keep_alive",): "the model stays in memory until session.close(): leave it out",
    ("chat_history", "context", "history"): "session.chat() keeps a conversation, from messages=[...] on",
    ("api_key", "base_url", "api_base"): "the model runs in this process: leave it out",
    ("trust_remote_code",): "no code of a model is run: leave it out",
    ("token", "hf_token", "use_auth_token"): "log in by `hf auth login`, or set HF_TOKEN",
    ("cache_dir", "download_dir"): "set HF_HOME for downloaded models, and REKINDLE_CACHE for programs and pages",
    ("local_files_only",): "HF_HUB_OFFLINE=1 keeps the hub from being asked",
    ("verbose", "disable_log_stats", "disable_log_requests"): "progress=False hides the progress",
    (
        "attn_implementation", "cache_prompt", "enable_chunked_prefill", "enforce_eager", "flash_attn",
        "low_cpu_mem_usage", "offload_folder", "use_cache", "use_mlock", "use_mmap", "use_safetensors",
    ): "there is nothing to choose: leave it out",
    ("timeout", "max_time"): "put the call into asyncio.timeout() or anyio.fail_after(), which cancel it",
}  # fmt: skip
"""Hints for keywords of other libraries without a counterpart here."""
_LISTED: Final = 12
"""Most choices listed in a message."""
_CLOSE: Final = 0.72
"""Least similarity of two names for a suggestion; with less, `version` is close to `Session`."""


def spelled_out(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator for a function with `**options`. The decorated signature has each option by name.

    Args:
        options: TypedDict of the options.
        defaults: default value of each option.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        first = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in options.__annotations__.items()
        ]
        spelled: Any = function
        spelled.__signature__ = signature.replace(parameters=[*first, *keywords])
        return function

    return decorate


def suggestion(name: str, choices: Collection[str]) -> str:
    """Return the end of a message about an unknown name: Rekindle's name, the closest choice, or a remedy."""
    if hint := likely(name, choices):
        return hint
    if name in _OF_TEMPLATES:
        value = _OF_TEMPLATES[name]
        where = "" if "chat_template_kwargs" in choices else " of a call, as generate()"
        return f'it is a variable of the chat template: chat_template_kwargs={{"{name}": {value}}}{where}'
    for names, way in _OTHERWISE.items():
        if name in names:
            return way
    if len(choices) > _LISTED:
        return f"none of the {len(choices)} names is close, which help() of the function lists"
    return f"known are {', '.join(choices)}"


def likely(name: str, choices: Collection[str]) -> str:
    """Return a hint with Rekindle's name for an unknown name, or the closest choice; "" if none is close."""
    for ours, theirs in _ELSEWHERE.items():
        if name in theirs and ours in choices:
            return f"here it is {ours}"
    if name in _OF_TEMPLATES or any(name in names for names in _OTHERWISE):
        return ""
    close = difflib.get_close_matches(name, choices, n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]}?" if close else ""


def called(function: Callable[..., T], arguments: Sequence[Any], options: Mapping[str, Any]) -> T:
    """Call a method. An error about its arguments has a hint, and shows the user's lines alone.

    Args:
        arguments: the object and the positional arguments.

    Raises:
        TypeError: the method has no such arguments.
    """
    try:
        return function(*arguments, **options)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # the method itself raised it
        hint = _arguments_hint(function, len(arguments), options)
        raise with_short_traceback(TypeError(f"{error}{hint}")) from None


def _arguments_hint(function: Callable[..., Any], count: int, options: Mapping[str, Any]) -> str:
    """Return the end of a message about wrong arguments; "" if the first part says enough."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [each.name for each in parameters[1:]]
    for name in options:
        if name not in names:
            return f"; {suggestion(name, names)}"
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    too_many = bool(keywords) and count > len(parameters) - len(keywords)
    return f"; give the others by name: {', '.join(keywords)}" if too_many else ""


def hinted(kind: type[T]) -> type[T]:
    """Give the constructor of a class hints for wrong arguments."""
    construct: Callable[..., None] = vars(kind)["__init__"]

    @wraps(construct)
    def initialize(self: T, *arguments: Any, **options: Any) -> None:
        __tracebackhide__ = True
        called(construct, (self, *arguments), options)

    changed: Any = kind
    changed.__init__ = initialize
    return kind
