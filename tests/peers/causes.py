"""Causes of failures in the suites of others: fields not claimed, fixtures, models. Without one, it may be a fault."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

Causes = Mapping[str, Sequence[str]]
"""Regular expressions by cause, for lines of a test and its reason. The first match counts."""

NOT_CLAIMED: Final = "not claimed: "
FIXTURE: Final = "a fixture of theirs: "
MODEL: Final = "another model: "
BOTH: Final[Causes] = {
    NOT_CLAIMED + "a field with an effect, which is refused by name": (r"cannot be served: (it is|this server)",),
    NOT_CLAIMED + "the route": (r"no such route", r" is not served; there are "),
    NOT_CLAIMED + "pictures from addresses; nothing is fetched": (r"nothing is fetched",),
    FIXTURE + "a server without keys, or with --cors, beside one with keys": (
        *(r"test_no_api_token", r"test_cors_options", r"test_local_media_file", r"401 GET /sw\.js"),
        r"test_access_static_assets",
    ),
    FIXTURE + "the name of a model or an adapter that their server has": (r"there is no model '",),
    FIXTURE + "settings of their server": (
        *(r"maximum context length is", r"prompt is too long", r"raise max_logprobs in open", r"--admin-key"),
        *(r"test_chat_with_enable_force_include_usage", r"test_multi_image_input\[image_urls1"),
    ),
    MODEL + "one token for yes or for a label": (r"needs '[Yy]es' as one token",),
    MODEL + "a head for classes": (r"no head that classifies",),
}
VLLM: Final[Causes] = {
    **BOTH,
    FIXTURE + "classes of vLLM, without a server": (
        *(r"MagicMock", r"Cannot spec a Mock", r"isinstance\(\) arg 2", r"DID NOT RAISE (VLLMValidation|Value)Error"),
        *(r"test_chat_completion_request_\w+", r"'detail'", r"attribute 'REGISTRY'"),
    ),
    FIXTURE + "the same model in transformers": (r"hf_runner", r"hf_model", r"test_matryoshka"),
    FIXTURE + "tokens by names of their tokenizer": (
        r"ServerTokenizer",
        r"test_(completion|chat)_return_tokens_as_token_ids",
        r"test_single_chat_session_image(_base64encoded)?\[",
    ),
    NOT_CLAIMED + "words and types of vLLM's errors; they are OpenAI's here": (
        *(r"== 'BadRequestError'", r"'literal_error' in", r"Regex pattern did not match", r"'text input only' in"),
        *(r"'at most N options' in", r"'unknown field\(s\)' in", r"'ordered list of levels' in", r"Please reduce the"),
        *(r"test_validation_errors", r"test_thinking_is_refused", r"test_(pooling|embed)_\w*not_supported"),
        r"test_pooling_embed",
    ),
    NOT_CLAIMED + "vLLM's names of metrics": (r"vllm:num_requests", r"test_metrics_counts"),
    NOT_CLAIMED + "times and ids that OpenAI's answers do not have": (r"test_per_request_metrics", r"attribute 'id'"),
    NOT_CLAIMED + "`reasoning`; it is `reasoning_content` here": (r"has no attribute 'reasoning'",),
    NOT_CLAIMED + "text in the last chunk of a stream; it is empty here, as OpenAI's": (
        r"test_chat_streaming\[",
        r"test_chat_completion_stream_options\[",
    ),
    NOT_CLAIMED + "the tokens of messages with pictures": (r"may have text alone on this route",),
    NOT_CLAIMED + "refusals where this server answers": (
        r"test_bigger_truncation_size",
        r"test_error_on_invalid_image_url_type",
    ),
    NOT_CLAIMED + "ids of requests by clients; each answer has the id of its trace": (r"test_\w*request_id_header",),
    NOT_CLAIMED + "the number of vLLM's version": (r"test_show_version",),
    NOT_CLAIMED + "`prompt` alone; llama.cpp's `content` is beside it": (r"test_detokenize\[",),
    MODEL + "thoughts": (
        *(r"needs a model with thoughts", r"Expected reasoning", r"test_\w*reasoning\w*"),
        r"test_default_includes_reasoning",
    ),
    MODEL + "calls of tools": (
        r"test_(named_tool_use|function_tool_use|function_calling|anthropic_tool_call|chat_completion_with_tool_use)",
    ),
    MODEL + "the texts, counts or choices of a trained model": (
        *(r"'length' == 'stop'", r"'incomplete' == 'completed'", r"'max_tokens' == 'end_turn'", r"assert 'N' in"),
        *(r"Spanish", r"test_structured_output", r"test_response_format_json", r"test_complex_message_content"),
        *(r"test_single_(completion|chat_session)\[", r"test_more_than_one_prompt_logprobs_chat", r"test_basic\b"),
        *(r"test_single_read_answers", r"test_choice_decision", r"test_one_option", r"test_streaming_logprobs"),
        *(r"test_basic_completion_with_emoji", r"test_(previous_response_id|two_responses_with_same_prev_id)"),
        *(r"has the token of an image", r"test_chunked_vs_normal", r"test_use_activation", r"test_pooling_classify"),
        *(r"test_completion_request_batched", r"test_check_models", r"test_request_cancellation", r"an empty file"),
    ),
}
LLAMA: Final[Causes] = {
    **BOTH,
    FIXTURE + "templates and adapters that a script fetches": (
        *(r"\.jinja does not exist", r"resolve/main", r"test_lora"),
        r"test_stream_(stop|resumes|resume)\w*",
    ),
    FIXTURE + "settings that their server starts with": (
        *(r"test_server_multiple_addresses", r"test_no_ui", r"test_embedding_pooling_none", r"test_server_model"),
        *(r"test_chat_template", r"test_cancel_request", r"test_completion_unified", r"'fp_\w+' is not None"),
    ),
    NOT_CLAIMED + "fields of llama.cpp's own answers": (
        *(
            r"KeyError: 'content'",
            r"KeyError: 'timings'",
            r"KeyError: 'aliases'",
            r"Start-Time-Unix",
            r"test_server_models",
        ),
        r"test_metrics_\w+",
    ),
    NOT_CLAIMED + "types of llama.cpp's errors; they are OpenAI's here": (
        r"exceed_context_size_error",
        r"== 'authentication_error'",
        r"'too large' in",
    ),
    NOT_CLAIMED + "mixed, nested and empty inputs of embeddings": (r"test_embedding_mixed_input",),
    NOT_CLAIMED + "a chat without messages, an error in Anthropic's API": (r"test_anthropic_empty_messages",),
    NOT_CLAIMED + "a refusal of two answers in a row; templates decide": (r"test_invalid_chat_completion_req",),
    NOT_CLAIMED + "a refusal of pictures by their model, which does not see": (
        r"test_anthropic_(tool_result_with_image|vision_format_accepted)",
    ),
    MODEL + "calls of tools": (
        r"Expected 1 tool call",
        r"test_completion_with_required_tool",
        r"test_(weather|calc|hello)",
    ),
    MODEL + "thoughts": (r"test_thoughts", r"[Tt]hinking", r"thinking"),
    MODEL + "the texts and counts of tokens of a trained model": (
        *(r"test_chat_completion(_stream)?\[", r"test_chat_completion_cached_tokens", r"test_embedding_usage"),
        *(r"test_completion_(stream_)?with_openai_library", r"test_tokenize_with_bos", r"Unexpected output"),
        *(r"test_chat_completion_with_openai_library", r"Unterminated string"),
    ),
}


def cause_of(causes: Causes, test: str, reason: str) -> str | None:
    """Return the cause of a failure, or None if it has no entry."""
    line = f"{test}: {reason}"
    return next((cause for cause, patterns in causes.items() if any(re.search(each, line) for each in patterns)), None)
