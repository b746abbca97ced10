"""Files of vLLM's tests with a server, in two lists: run here, or left out with a reason."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

VERSION: Final = "0.33.0"
"""The version of vLLM with the files below."""
ROOT: Final = "tests/entrypoints"
STARTS: Final = ("RemoteOpenAIServer", "RemoteVLLMServer", "RemoteLaunchRenderServer")
"""Fixtures with a server."""
RUN: Final[Sequence[str]] = (
    *(f"openai/chat_completion/test_{name}.py" for name in ("chat", "chat_completion", "chat_echo")),
    *(f"openai/chat_completion/test_{name}.py" for name in ("chat_logit_bias_validation", "extra_content_fields")),
    *(f"openai/chat_completion/test_{name}.py" for name in ("completion_with_function_calling", "include_reasoning")),
    *(f"openai/chat_completion/test_{name}.py" for name in ("enable_force_include_usage", "thinking_token_budget")),
    *(f"openai/completion/test_{name}.py" for name in ("completion", "prompt_validation", "token_in_token_out")),
    "openai/responses/test_simple.py",
    "openai/models/test_models.py",
    "openai/decisions/test_decisions_e2e.py",
    *(f"openai/test_{name}.py" for name in ("chunked_prompt", "return_token_ids", "return_tokens_as_ids")),
    "anthropic/test_messages.py",
    "generate/structured_decisions/test_structured_decisions_e2e.py",
    *(f"pooling/embed/test_{name}.py" for name in ("online", "online_dimensions", "online_long_text")),
    *(f"pooling/scoring/test_{name}_online.py" for name in ("bi_encoder", "cross_encoder")),
    *("pooling/classify/test_online.py", "pooling/basic/test_truncation.py"),
    *(f"serve/instrumentator/test_{name}.py" for name in ("basic", "metrics")),
    "serve/tokenize/test_tokenization.py",
    "serve/lora/test_lora_adapters.py",
    "rl/state_transitions/test_sleep.py",
    "tool_parsers/test_hermes_tool_parser.py",
)
"""The files to run, below `ROOT`."""
OTHERS: Final[Sequence[str]] = tuple(
    f"openai/responses/test_{name}.py" for name in ("basic", "function_call", "stateful", "structured_output")
)
"""Files to run, with a server from a shared fixture."""
PICTURES: Final[Sequence[str]] = (
    "multimodal/openai/chat_completion/test_vision.py",
    "multimodal/openai/responses/test_image.py",
    *("pooling/classify/test_online_vision.py", "pooling/embed/test_online_vision.py"),
    "pooling/scoring/test_cross_encoder_online_vision.py",
    *(f"serve/tokenize/test_{name}_vlm.py" for name in ("tokenization", "tokenize_then_chat")),
)
"""Files to run on a server with a vision model."""
KEYS: Final[Sequence[str]] = ("serve/middleware/test_optional_middleware.py",)
"""Files to run on a server with the key "test"."""
AUDIO: Final = "audio and video are not claimed"
NOT_CLAIMED: Final = "the route or the field is not claimed: "
LEFT_OUT: Final[Mapping[str, Sequence[str]]] = {
    "it needs the weights of a published model, with its adapters or a query and pictures scored by their tokens": (
        "multimodal/openai/chat_completion/test_default_mm_loras.py",
        "pooling/scoring/test_late_interaction_online_vision.py",
    ),
    AUDIO: (
        *(f"multimodal/openai/chat_completion/test_{name}.py" for name in ("audio", "audio_in_video", "video")),
        "speech_to_text/correctness/test_transcription_api_correctness.py",
        "speech_to_text/realtime/test_realtime_validation.py",
        "speech_to_text/transcription/test_enable_force_include_usage.py",
        "speech_to_text/transcription/test_transcription_validation.py",
        "speech_to_text/transcription/test_transcription_validation_whisper.py",
        "speech_to_text/translation/test_translation_validation.py",
    ),
    NOT_CLAIMED + "embeddings in prompts": (
        *(
            f"multimodal/openai/chat_completion/test_{name}.py"
            for name in (
                *("chat_completion_with_image_embeds", "chat_completion_with_mixed_audio_embeds"),
                *("chat_completion_with_mixed_image_embeds", "vision_embeds"),
            )
        ),
        "openai/chat_completion/test_chat_completion_with_prompt_embeds.py",
        "openai/completion/test_completion_with_prompt_embeds.py",
    ),
    NOT_CLAIMED + "Cohere's chats and embeddings": (
        "cohere/test_chat_v2.py",
        *(f"pooling/embed/test_cohere_{name}.py" for name in ("online", "online_vision", "openai_parity")),
    ),
    NOT_CLAIMED + "scores of generated tokens, joint decisions of diffusion models": (
        "generate/generative_scoring/test_generative_scoring_e2e.py",
        "generate/structured_decisions/test_joint_e2e.py",
    ),
    NOT_CLAIMED + "states of single tokens": (
        "pooling/reward/test_token_reward_online.py",
        "pooling/scoring/test_late_interaction_online.py",
        "pooling/token_classify/test_online.py",
        "pooling/token_embed/test_online.py",
    ),
    NOT_CLAIMED + "batches of chats in one body, log-probabilities of chosen ids, a path before all routes": (
        *(
            f"openai/chat_completion/test_{name}.py"
            for name in ("batched_chat_completions", "logprob_token_ids", "root_path")
        ),
    ),
    NOT_CLAIMED + "routes between the processes of a divided vLLM": (
        *(f"scale_out/derender/test_derender{name}.py" for name in ("", "_parity", "_stream")),
        *(f"scale_out/render/test_{name}.py" for name in ("launch_render", "render", "render_multimodal")),
        *(f"scale_out/token_in_token_out/test_serving{name}.py" for name in ("_multimodal_tokens", "_tokens")),
        *(f"rl/return_routed_experts/test_{name}_api.py" for name in ("openai", "scale_out")),
        "rl/weight_transfer_metrics/test_across_api_servers_metrics.py",
        "serve/dev/rpc/test_collective_rpc.py",
    ),
    NOT_CLAIMED + "SageMaker's routes": tuple(
        f"serve/sagemaker/test_sagemaker_{name}.py"
        for name in ("handler_overrides", "lora_adapters", "middleware_integration", "stateful_sessions")
    ),
    NOT_CLAIMED + "headers of ORCA, sockets of Unix": tuple(
        f"serve/instrumentator/test_{name}.py" for name in ("orca_metrics", "uds")
    ),
    NOT_CLAIMED + "tools that the server runs, channels of harmony": tuple(
        f"openai/responses/test_{name}.py" for name in ("harmony", "mcp_tools", "parsable_context")
    ),
    "it tests processes, signals, files or classes of vLLM": (
        *("launchers/api_server/test_multi_api_servers.py", "launchers/test_shutdown.py"),
        *("openai/chat_completion/test_serving_chat.py", "openai/completion/test_tensorizer_entrypoint.py"),
        "unit_tests/test_remote_vllm_server.py",
    ),
    "it compares the quality of a published model": (
        "openai/correctness/test_lmeval.py",
        *("pooling/embed/test_correctness_mteb.py", "pooling/scoring/test_cross_encoder_correctness_mteb.py"),
        *(f"tool_parsers/test_{name}_tool_parser.py" for name in ("granite4", "openai")),
    ),
    "it needs schemathesis; tests/unit/server/test_server_openapi.py checks the same document": (
        "openai/test_openai_schema.py",
    ),
}
"""Files without a run, below `ROOT`, by the reason."""


def unlisted(checkout: Path) -> Iterator[str]:
    """Yield the files of a checkout with a server and without an entry."""
    entries = {*RUN, *OTHERS, *PICTURES, *KEYS, *(name for names in LEFT_OUT.values() for name in names)}
    root = checkout / ROOT
    for path in sorted(root.rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if name not in entries and any(start in path.read_text(encoding="utf-8") for start in STARTS):
            yield name
