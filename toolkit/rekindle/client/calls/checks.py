"""Checks of a call's parameters and prompts against the model of a session."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt, Verbatim
from rekindle.core.request.params import SamplingParams
from rekindle.core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rekindle.assembly.loaded_engine import LoadedEngine

TEMPLATE_NOTE: Final = (
    "A str is used as it is, without the model's chat template. To apply the template, pass messages: "
    '[{"role": "user", "content": "..."}], or use session.chat(). This note appears once per session.'
)


def check_params(params: SamplingParams, loaded_engine: "LoadedEngine") -> None:
    """Raise InvalidRequest for parameters beyond the abilities of an engine."""
    limits = loaded_engine.limits
    params.check_against(loaded_engine.model.vocab_size, limits.max_logprobs)
    if params.steers:
        _check_steered(params, loaded_engine)
    if params.capture is not None:
        loaded_engine.check_looks("capture")
        if params.adapter is not None:
            raise InvalidRequest.of(
                "capture", "capture is for the model alone, and the request has an adapter: leave one of them out"
            )
        check_captures(params, loaded_engine, 1)
    if params.processor_args is not None and not limits.processes_logits:
        raise InvalidRequest("processor_args need a logits processor, and this session was opened without one")
    if params.draft == "mtp" and not limits.proposes:
        raise InvalidRequest.of(
            "draft", 'draft="mtp" needs the draft head of the model, and this session was opened without draft="mtp"'
        )


def check_captures(params: SamplingParams, loaded_engine: "LoadedEngine", requests: int) -> None:
    """Raise InvalidRequest if the captures of a number of requests are too large together."""
    if params.capture is not None:
        loaded_engine.looks.check_captures(params.capture, params.max_tokens, requests)


def lacks_template(
    prompts: Sequence[Prompt | InvalidRequest], params: SamplingParams, tokenizer: Tokenizer | None
) -> bool:
    """Return True for a text without the chat template, unless it is marked up, scored or has a choice."""
    if tokenizer is None or tokenizer.chat_template is None or params.max_tokens == 0:
        return False
    if params.constraint is not None and params.constraint.kind == "choice":
        return False
    texts = [prompt for prompt in prompts if isinstance(prompt, str) and not isinstance(prompt, Verbatim)]
    return bool(texts) and not any(mark in texts[0] for mark in tokenizer.special_texts)


def _check_steered(params: SamplingParams, loaded_engine: "LoadedEngine") -> None:
    """Raise InvalidRequest for an engine without steering, or for layers without."""
    layers = [steering.layer for steering in params.steer] + [patch.layer for patch in params.patch]
    if loaded_engine.model.embedding_multiplier != 1 and "embedding" in layers:
        raise InvalidRequest(
            "the model multiplies its embeddings, so steer and patch are for its layers, not for "
            '"embedding"; session.look takes both'
        )
    loaded_engine.check_programs("steer and patch", steered=True)
    if loaded_engine.model.streams is not None:
        raise InvalidRequest("steer and patch are for models with one residual stream, and this one has several")
