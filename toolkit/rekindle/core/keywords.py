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
    "logprobs": ("top_logprobs", "n_probs"),
    "prompt_logprobs_from": ("logprob_start_len", "prompt_logprobs_start"),
    "seed": ("random_seed", "random_state"),
    "bad_words": ("bad_words_ids",),
    "json_schema": ("guided_json", "response_format", "response_model", "schema", "output_type"),
    "regex": ("guided_regex", "pattern"),
    "choice": ("guided_choice", "choices", "options"),
    "grammar": ("guided_grammar", "ebnf", "lark"),
    "device": ("device_map",),
    "dtype": ("torch_dtype",),
    "tensor": ("tensor_parallel_size", "tp_size", "tp", "num_devices", "num_gpus"),
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
}
"""Names of the same parameters in transformers, vLLM, llama.cpp, Ollama and OpenAI's API, by Rekindle's name."""
_OTHERWISE: Final = {
    ("messages", "prompts", "inputs", "input", "text", "texts"): "the prompt is the first argument, and has no name",
    ("system", "system_prompt"): 'begin the messages with {"role": "system", "content": ...}',
    ("stream", "streamer"): "session.stream() gives the pieces as they come",
    ("trust_remote_code",): "no code of a model is run: leave it out",
    ("token", "hf_token", "use_auth_token"): "log in by `hf auth login`, or set HF_TOKEN",
    ("cache_dir", "download_dir"): "set HF_HOME for downloaded models, and REKINDLE_CACHE for programs and pages",
    ("verbose", "disable_log_stats", "disable_log_requests"): "progress=False hides the progress",
    ("enforce_eager", "attn_implementation", "use_cache"): "there is nothing to choose: leave it out",
    ("timeout",): "put the call into asyncio.timeout() or anyio.fail_after(), which cancel it",
}
"""Hints for keywords of other libraries without a counterpart here."""


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
    """Return the end of a message about an unknown name: Rekindle's name, the closest choice, or all choices."""
    for names, way in _OTHERWISE.items():
        if name in names:
            return way
    return likely(name, choices) or f"known are {', '.join(choices)}"


def likely(name: str, choices: Collection[str]) -> str:
    """Return a hint with Rekindle's name for an unknown name, or the closest choice; "" if none is close."""
    for ours, theirs in _ELSEWHERE.items():
        if name in theirs and ours in choices:
            return f"here it is {ours}"
    close = difflib.get_close_matches(name, choices, n=1)
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
