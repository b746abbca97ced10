"""Options of inspect-ai as keywords of a session."""

from collections.abc import Mapping
from logging import getLogger
from typing import Any, Final

from inspect_ai.model import GenerateConfig

from rekindle.client.calls.options import is_greedy
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.rendering.chat import unread_variables
from rekindle.formats.rendering.efforts import EFFORT
from rekindle.server.common.sampling import SAMPLING_ONLY

MAX_TOKENS: Final = 2048
"""The default for the most tokens of an answer, as in inspect-ai's other providers for models in a process."""
KEYWORDS: Final[Mapping[str, str]] = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "stop_seqs": "stop",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "parallel_tool_calls": "parallel_tool_calls",
    "reasoning_tokens": "thinking_budget",
}
"""The keyword of the session for each option with the same value."""
CONVERTED: Final = (
    "extra_body",
    "logprobs",
    "num_choices",
    "prompt_logprobs",
    "reasoning_effort",
    "response_schema",
    "top_logprobs",
)
"""Options with values of another form."""
OF_INSPECT: Final = (
    "adaptive_connections",
    "attempt_timeout",
    "cache",
    "fail_on_refusal",
    "max_connections",
    "max_retries",
    "max_tool_output",
    "reasoning_history",
    "stream_idle_timeout",
    "system_message",
    "timeout",
)
"""Options with an effect above all providers."""
IDLE: Final = ("batch", "cache_prompt", "extra_headers", "fallback_models", "internal_tools", "reasoning_summary")
"""Options without an effect on the answers of a model in this process, accepted with a note."""
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "effort": (),
    "modalities": ([], ["text"]),
    "reasoning_mode": ("standard",),
    "verbosity": ("medium",),
}
"""Options without an equivalent here, each with its neutral values; any other value raises."""

_logger = getLogger(__name__)
_noted: set[str] = set()


def options_of(config: GenerateConfig) -> dict[str, Any]:
    """Return the keywords of `session.generate` for a configuration.

    Raises:
        InvalidRequest: an option would change answers and has no equivalent, or is unknown.
    """
    present = {name: value for name in type(config).model_fields if (value := getattr(config, name)) is not None}
    _check(present)
    options: dict[str, Any] = {"max_tokens": MAX_TOKENS, "stop_on_repetition": False}
    options |= {keyword: present[name] for name, keyword in KEYWORDS.items() if name in present}
    if config.logprobs:
        options["logprobs"] = config.top_logprobs or 0
    elif config.top_logprobs:
        raise InvalidRequest(f"top_logprobs={config.top_logprobs} needs logprobs=True")
    if (count := config.prompt_logprobs) is not None:
        options["prompt_logprobs"] = count if count > 1 else 0  # 1 is the token alone, as in inspect-ai's providers
    if config.response_schema is not None:
        options["json_schema"] = config.response_schema.json_schema.model_dump(exclude_none=True)
    if config.reasoning_effort is not None:
        options["chat_template_kwargs"] = {EFFORT: config.reasoning_effort}
    further = dict(config.extra_body or {})
    variables = {**options.get("chat_template_kwargs", {}), **(further.pop("chat_template_kwargs", None) or {})}
    options |= further | ({"chat_template_kwargs": variables} if variables else {})
    if is_greedy(options.get("temperature")):
        options = {name: value for name, value in options.items() if name not in SAMPLING_ONLY}
    return options


def of_epoch(options: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Return the keywords of a call for an epoch, counted from 1: each has its own seed, from the seed of the first."""
    seed = options.get("seed")
    return {**options, "seed": (seed + epoch - 1) % 2**64} if isinstance(seed, int) and seed >= 0 else dict(options)


def for_template(options: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the keywords without the reasoning effort "none" if the model's chat template reads no effort.

    Raises:
        InvalidRequest: the template reads no effort, and there is another one.
    """
    variables: dict[str, Any] = dict(options.get("chat_template_kwargs") or {})
    if EFFORT not in variables or tokenizer is None:
        return dict(options)
    unread = unread_variables({EFFORT: variables[EFFORT]}, tokenizer.chat_template, tokenizer.tool_template)
    if unread and variables.pop(EFFORT) != "none":
        raise InvalidRequest(f"{unread[EFFORT]}: leave {EFFORT} out")
    return {**options, "chat_template_kwargs": variables or None}


def _check(present: Mapping[str, Any]) -> None:
    """Check the options other than None: note idle ones, once in a process, and refuse others without an equivalent."""
    usable = {*KEYWORDS, *CONVERTED, *OF_INSPECT, *IDLE}
    for name, value in present.items():
        if name in usable or value in NEUTRAL.get(name, ()):
            continue
        if name in NEUTRAL:
            raise InvalidRequest(
                f"{name}={preview(value)} would change answers, and has no equivalent here: leave {name} out"
            )
        raise InvalidRequest(f"{name}={preview(value)} is an option of a later inspect-ai, unknown here: leave it out")
    idle = [name for name in IDLE if name in present and name not in _noted]
    if idle:
        _noted.update(idle)
        _logger.warning("rekindle: without an effect on a model in this process: %s", ", ".join(idle))
