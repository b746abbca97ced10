"""The arguments of vLLM's offline interface, with their effects here: data for checks and for the guide."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from rekindle.core.errors import InvalidRequest, warn
from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview

Effect = Literal["same", "told", "raises"]
VERSION: Final = "0.33.0"
"""The version of vLLM with these arguments."""
EFFECTS: Final[Mapping[str, Mapping[Effect, str]]] = {
    "LLM": {
        "same": (
            "model tensor_parallel_size data_parallel_size dtype quantization revision chat_template seed "
            "kv_cache_memory_bytes kv_cache_dtype max_model_len max_num_seqs enable_prefix_caching max_logprobs "
            "logprobs_mode generation_config override_generation_config max_loras max_lora_rank runner convert "
            "speculative_config"
        ),
        "told": (
            "tokenizer_mode trust_remote_code gpu_memory_utilization cpu_offload_gb offload_group_size "
            "offload_num_in_group offload_prefetch_step offload_params enforce_eager disable_custom_all_reduce "
            "attention_config profiler_config compilation_config spec_method spec_model spec_tokens "
            "max_num_batched_tokens block_size swap_space enable_chunked_prefill disable_log_stats load_format "
            "distributed_executor_backend pipeline_parallel_size served_model_name enable_lora enable_sleep_mode "
            "enable_expert_parallel attention_backend async_scheduling num_gpu_blocks_override use_tqdm_on_load "
            "cudagraph_capture_sizes limit_mm_per_prompt enable_flashinfer_autotune optimization_level model_impl "
            "config_format ignore_patterns max_cpu_loras fully_sharded_loras mm_processor_cache_gb "
            "disable_mm_preprocessor_cache disable_chunked_mm_input enable_mm_embeds model_loader_extra_config "
            "reasoning_parser max_seq_len_to_capture disable_log_requests kv_transfer_config guided_decoding_backend "
            "scheduling_policy data_parallel_backend disable_cascade_attn long_prefill_token_threshold"
        ),
        "raises": (
            "tokenizer skip_tokenizer_init allowed_local_media_path allowed_media_domains tokenizer_revision "
            "enable_return_routed_experts return_sampling_mask hf_token hf_overrides mm_processor_kwargs pooler_config "
            "structured_outputs_config quantization_config logits_processors enable_prompt_embeds enable_trace_replay "
            "io_processor_plugin worker_cls worker_extension_cls"
        ),
    },
    "LLM.generate": {
        "same": "prompts sampling_params use_tqdm lora_request priority prompt_token_ids",
        "raises": "tokenization_kwargs mm_processor_kwargs",
    },
    "LLM.chat": {
        "same": (
            "messages sampling_params use_tqdm lora_request priority continue_final_message tools chat_template_kwargs "
            "add_generation_prompt chat_template"
        ),
        "told": "chat_template_content_format",
        "raises": "tokenization_kwargs mm_processor_kwargs",
    },
    "LLM.beam_search": {"same": "prompts params lora_request use_tqdm concurrency_limit priority"},
    "LLM.enqueue": {
        "same": "prompts sampling_params lora_request priority",
        "told": "use_tqdm",
        "raises": "tokenization_kwargs mm_processor_kwargs",
    },
    "LLM.enqueue_chat": {
        "same": (
            "messages sampling_params lora_request priority continue_final_message tools chat_template_kwargs "
            "add_generation_prompt chat_template"
        ),
        "told": "use_tqdm chat_template_content_format",
        "raises": "tokenization_kwargs mm_processor_kwargs",
    },
    "LLM.wait_for_completion": {"same": "output_type use_tqdm"},
    "LLM.sleep": {"same": "level mode"},
    "LLM.wake_up": {"told": "tags"},
    "LLM.reset_prefix_cache": {"told": "reset_running_requests reset_connector"},
    "LLM.encode": {
        "same": "prompts pooling_params use_tqdm lora_request pooling_task",
        "raises": "tokenization_kwargs",
    },
    "LLM.embed": {"same": "prompts use_tqdm pooling_params lora_request", "raises": "tokenization_kwargs"},
    "LLM.classify": {"same": "prompts use_tqdm pooling_params lora_request", "raises": "tokenization_kwargs"},
    "LLM.score": {
        "same": "data_1 data_2 use_tqdm pooling_params lora_request",
        "raises": "tokenization_kwargs chat_template",
    },
    "SamplingParams": {
        "same": (
            "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop "
            "stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs skip_special_tokens "
            "include_stop_str_in_output structured_outputs logit_bias allowed_token_ids bad_words "
            "thinking_token_budget repetition_detection prompt_logprob_start guided_decoding"
        ),
        "told": "detokenize output_kind stream_interval skip_clone output_text_buffer_length flat_logprobs "
        "skip_reading_prefix_cache",
        "raises": (
            "watermarking prompt_logprob_token_ids logprob_token_ids spaces_between_special_tokens extra_args "
            "routed_experts_prompt_start trace_decode_token_ids"
        ),
    },
    "StructuredOutputsParams": {
        "same": "json regex choice grammar json_object",
        "raises": "disable_any_whitespace disable_additional_properties whitespace_pattern structural_tag",
    },
    "BeamSearchParams": {
        "same": "beam_width max_tokens ignore_eos length_penalty skip_special_tokens",
        "told": "include_stop_str_in_output",
        "raises": "temperature structured_outputs",
    },
    "PoolingParams": {
        "same": "use_activation dimensions",
        "told": "task output_kind skip_reading_prefix_cache requires_token_ids",
        "raises": "step_tag_id returned_token_ids late_interaction_params extra_kwargs late_chunking_params",
    },
    "LoRARequest": {
        "same": "lora_name lora_int_id lora_path load_inplace",
        "told": "base_model_name",
        "raises": "is_3d_lora_weight",
    },
}
"""The names of arguments by their effect: the same as in vLLM; accepted with a note, for speed alone; or an error."""
NEUTRAL: Final[Mapping[str, Any]] = {
    "allowed_local_media_path": "",
    "spaces_between_special_tokens": True,
    "routed_experts_prompt_start": 0,
}
"""Values without an effect of arguments that raise, beside None and False."""
_WEIGHTS: Final = "llm.session.update_weights_sync(...) takes new weights, as files or as arrays by name"
_TIMES: Final = "llm.session.trace() and the dashboard show times, and llm.session.stats has counters"
ABSENT: Final[Mapping[str, str]] = {
    "llm_engine": "llm.session has the model, its settings and its counters; " + _WEIGHTS,
    "collective_rpc": "there are no workers; " + _WEIGHTS,
    "apply_model": "there is no module of torch; llm.session.look_sync(...) shows activations",
    "set_tokenizer": "open the model from a directory with the tokenizer",
    "from_engine_args": "LLM(...) takes the arguments",
    "shutdown": "llm.close() ends the session",
    "get_metrics": _TIMES,
    "start_profile": _TIMES,
    "stop_profile": _TIMES,
    "get_world_size": "llm.session.settings has tensor and data",
    "reset_mm_cache": "images are known by their content, so there is nothing to reset",
    "release_kv_cache_memory": "llm.sleep() frees the pages and the weights",
    **dict.fromkeys(
        (
            *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update"),
            *("start_draft_weight_update", "update_weights", "finish_weight_update", "update_weight_version"),
        ),
        _WEIGHTS,
    ),
    "get_weight_version": "llm.session.weights_version has the number",
}
"""Members of vLLM's `LLM` without an equivalent of the same name, each with another way."""
_ASYNC: Final = "await rekindle.open(model) gives a session for asyncio"
ABSENT_NAMES: Final[Mapping[str, str]] = {
    "EngineArgs": "LLM(...) takes the arguments",
    "AsyncEngineArgs": _ASYNC,
    "AsyncLLMEngine": _ASYNC,
    "AsyncLLM": _ASYNC,
    "LLMEngine": "llm.enqueue and llm.wait_for_completion submit requests and wait for them; " + _ASYNC,
    "ModelRegistry": "rekindle.open(model, family=...) takes an architecture",
    "PromptType": "a prompt is a str, token ids, TextPrompt or TokensPrompt",
    "PoolingOutputs": "PoolingOutput is the result of LLM.encode",
}
"""Names of vLLM without an equivalent, each with another way."""
_noted: set[tuple[str, str]] = set()


def arguments(owner: str) -> dict[str, Effect]:
    """Return the effect of each argument of a class or a method."""
    return {name: effect for effect, names in EFFECTS[owner].items() for name in names.split()}


def check(owner: str, values: Mapping[str, Any]) -> None:
    """Check the arguments of a call: note an effect on speed alone gives a note, once in a process.

    Args:
        owner: the class or the method.
        values: the values other than the defaults, by name.

    Raises:
        InvalidRequest: an argument has no equivalent, or is unknown.
    """
    effects = arguments(owner)
    for name, value in values.items():
        if name not in effects:
            hint = likely(name, effects) or "see the guide 'Coming from vLLM'"
            raise InvalidRequest(f"{owner} has no argument {name!r} here; {hint}")
        is_neutral = value is None or value is False or (name in NEUTRAL and value == NEUTRAL[name])
        if effects[name] == "raises" and not is_neutral:
            raise InvalidRequest(
                f"{owner}({name}={preview(value)}) would change answers, and has no equivalent here: leave {name} out"
            )
    new = [name for name in values if effects[name] == "told" and (owner, name) not in _noted]
    if new:
        _noted.update((owner, name) for name in new)
        verbs = "changes no answer, and has" if len(new) == 1 else "change no answer, and have"
        warn(f"{owner}: {', '.join(new)} {verbs} no effect here", UserWarning)


def markdown() -> Iterator[str]:
    """Yield the lines of the guide's table."""
    yield "| argument of | the same | accepted with a note | raises |"
    yield "|---|---|---|---|"
    for owner, effects in EFFECTS.items():
        cells = [", ".join(f"`{name}`" for name in effects.get(each, "").split()) for each in _ORDER]
        yield f"| `{owner}` | {' | '.join(cells)} |"


_ORDER: Final[tuple[Effect, ...]] = ("same", "told", "raises")
