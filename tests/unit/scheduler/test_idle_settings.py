"""A setting without an effect is refused or named: every setting has an entry here."""

import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.client.calls.options import GenerateOptions
from rekindle.core.request.params import SamplingParams
from rekindle.session.operations.idle_settings import idle_settings
from rekindle.session.session import Session
from rekindle.settings.engine import Settings
from rekindle.settings.server import ServerSettings
from rekindle.testing import fake_session

Case = tuple[Mapping[str, Any], str]
"""Settings, and the beginning of the message about them: of an error if it says so, else of a warning."""
Entries = Mapping[str, str | list[Case]]
"""For each setting its cases, or the reason for its constant effect, or for a harmless lack of one."""

ALWAYS = "it always has an effect"
BY_ITSELF = "values that cannot have an effect are refused by themselves"
APART: dict[str, Any] = {"prefill": "cpu:0", "decode": "cpu:0"}

OPEN: Entries = {
    "device": [({"device": ""}, "device must name a platform")],
    "tensor": ALWAYS,
    "data": ALWAYS,
    "mesh": [({"mesh": object(), "tensor": 2}, "mesh says which devices")],
    "replicas": ALWAYS,
    "route": [
        ({"route": "round-robin"}, "route='round-robin' has no effect: there is one lane"),
        ({"route": lambda request, lanes: 0}, "route=<function"),
        ({"route": "shortest-queue", **APART}, "route='shortest-queue' has no effect: prefill= and decode="),
    ],
    "prefill": [({"prefill": "cpu:0"}, "prefill and decode go together")],
    "decode": [({"decode": "cpu:0"}, "prefill and decode go together")],
    "prefill_from": [({"prefill_from": 16}, "prefill_from=16 has no effect: no devices are for prompts alone")],
    "implementation": ALWAYS,
    "dtype": ALWAYS,
    "weights": "a form that the file lacks is refused, and plain numbers are dequantized already",
    "quantize": BY_ITSELF,
    "activations": "by model: see test_settings_that_a_model_leaves_nothing_to_do",
    "mmproj": "a directory, which has its own tower, is refused: see test_checkpoint_vision.py",
    "kv_dtype": ALWAYS,
    "page_size": ALWAYS,
    "num_pages": [({"num_pages": 8, "pool_bytes": 1 << 20}, "num_pages and pool_bytes both say")],
    "pool_bytes": [({"num_pages": 8, "pool_bytes": 1 << 20}, "num_pages and pool_bytes both say")],
    "max_context": "by model: see test_settings_that_a_model_leaves_nothing_to_do",
    "max_running": ALWAYS,
    "max_waiting": ALWAYS,
    "max_prefill_tokens": ALWAYS,
    "prefill_chunk": [({"prefill_chunk": 128, "max_prefill_tokens": 64}, "prefill_chunk is 128, and max_prefill_tok")],
    "ticks": ALWAYS,
    "deterministic": [({"deterministic": True, "ticks": "combined"}, "deterministic=True gives every tick one shape")],
    "policy": [
        ({"policy": policy, "prefix_cache": False}, f"policy='{policy}' has no effect: it orders requests by")
        for policy in ("longest-prefix", "dfs-weight")
    ],
    "prefix_cache": ALWAYS,
    "image_bytes": "a model without a vision tower takes no images anyway",
    "host_cache_bytes": [
        ({"host_cache_bytes": 1 << 20, "prefix_cache": False}, "host_cache_bytes=1048576 has no effect: prefix_cache"),
    ],
    "disk_cache_bytes": [
        ({"disk_cache_bytes": 1 << 20, "prefix_cache": False}, "disk_cache_bytes=1048576 has no effect: prefix_cache"),
        ({"disk_cache_bytes": 1 << 20, "restore": "off"}, "disk_cache_bytes=1048576 has no effect: restore="),
        ({"disk_cache_bytes": 1 << 20, "host_cache_bytes": 0}, "disk_cache_bytes=1048576 has no effect: pages reach"),
    ],
    "weight_cache_bytes": [
        ({"weight_cache_bytes": 1 << 20, "restore": "off"}, "weight_cache_bytes=1048576 has no effect: restore="),
    ],
    "overlap": ALWAYS,
    "precompile": ALWAYS,
    "restore": "programs are stored too",
    "prefill_buckets": [({"deterministic": True, "prefill_buckets": [512]}, "deterministic=True gives every tick")],
    "decode_buckets": [({"deterministic": True, "decode_buckets": [32]}, "deterministic=True gives every tick")],
    "max_executables": ALWAYS,
    "max_logprobs": "more than the vocabulary is the whole vocabulary",
    "logits_processor": "it runs for requests with processor_args, by default for all",
    "sampling_defaults": "a model without recommendations is neutral already",
    "watchdog_timeout": ALWAYS,
    "decode_steps": ALWAYS,
    "max_adapters": ALWAYS,
    "max_adapter_rank": "it holds for adapters added later",
    "draft": ALWAYS,
}
NO_SAMPLING = "temperature=0 always takes the likeliest token, so "
TOKENS = "needs a conversation"
GENERATE: Entries = {
    "logit_bias": ALWAYS,
    "repetition_penalty": ALWAYS,
    "frequency_penalty": ALWAYS,
    "presence_penalty": ALWAYS,
    "bad_words": ALWAYS,
    "min_tokens": [({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is above max_tokens 4")],
    "allowed_token_ids": ALWAYS,
    "processor_args": [({"processor_args": [1.0]}, "processor_args need a logits processor")],
    "temperature": ALWAYS,
    "top_k": [({"top_k": 5, "temperature": 0}, NO_SAMPLING + "top_k")],
    "top_p": [({"top_p": 0.5, "temperature": 0}, NO_SAMPLING + "top_p")],
    "min_p": [({"min_p": 0.5, "temperature": 0}, NO_SAMPLING + "min_p")],
    "seed": [({"seed": 5, "temperature": 0}, NO_SAMPLING + "seed")],
    "max_tokens": ALWAYS,
    "ignore_eos": [({"ignore_eos": True, "regex": "a"}, "regex ends the output where it is complete")],
    "stop_token_ids": ALWAYS,
    "stop": ALWAYS,
    "keep_stop": [({"keep_stop": True}, "keep_stop=True has no effect without stop")],
    "stop_on_repetition": ALWAYS,
    "thinking_budget": [({"thinking_budget": 3}, "the model has no tokenizer, so thinking_budget finds no thoughts")],
    "skip_special_tokens": ALWAYS,
    "logprobs": ALWAYS,
    "logprobs_of": [({"logprobs_of": "sampled"}, "logprobs_of='sampled' needs logprobs")],
    "prompt_logprobs": ALWAYS,
    "prompt_logprobs_from": [({"prompt_logprobs_from": 1}, "prompt_logprobs_from=1 needs prompt_logprobs")],
    "truncate_prompt_tokens": ALWAYS,
    "truncation_side": [({"truncation_side": "right"}, "truncation_side='right' needs truncate_prompt_tokens")],
    "cache_salt": "without a prefix cache, no request shares prefixes",
    "adapter": ALWAYS,
    "steer": ALWAYS,
    "patch": ALWAYS,
    "capture": ALWAYS,
    "draft": "where it is ruled out, `stats` counts the request",
    "priority": ALWAYS,
    "json_schema": [({"json_schema": {"type": "object"}, "regex": "a"}, "json_schema and regex each constrain")],
    "regex": [({"regex": "b", "choice": ["a"]}, "regex and choice each constrain the output")],
    "choice": [({"choice": ["a"], "grammar": 'start: "a"'}, "choice and grammar each constrain the output")],
    "grammar": [({"grammar": 'start: "a"', "regex": "a"}, "regex and grammar each constrain the output")],
    "token_ids": ALWAYS,
    "images": "a model without a vision tower refuses images",
    "tools": [({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools= needs a chat template")],
    "tool_choice": [({"tool_choice": "required"}, f"tool_choice='required' {TOKENS}")],
    "parallel_tool_calls": "an answer without tools has no calls",
    "tool_grammars": [({"tool_grammars": {"f": 'start: "a"'}}, "tool_grammars are for required calls")],
    "chat_template_kwargs": [({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs= needs a chat template")],
    "continue_final_message": [({"continue_final_message": True}, "continue_final_message= needs a chat template")],
    "add_special_tokens": "neither a chat template nor token ids get other special tokens",
}
SERVE: Entries = {
    "host": ALWAYS,
    "port": ALWAYS,
    "api_keys": ALWAYS,
    "admin_keys": ALWAYS,
    "origins": ALWAYS,
    "grace": ALWAYS,
    "timeout_keep_alive": ALWAYS,
    "ssl_certfile": ALWAYS,
    "ssl_keyfile": [({"ssl_keyfile": "key.pem"}, "ssl_keyfile is the key of a certificate")],
    "strict": ALWAYS,
    "keep_responses": ALWAYS,
}


def cases(entries: Entries) -> list[Any]:
    """Return the cases of entries as parameters of a test."""
    return [
        pytest.param(*case, id=f"{name} {place}")
        for name, entry in entries.items()
        if isinstance(entry, list)
        for place, case in enumerate(entry)
    ]


def test_every_setting_has_an_entry() -> None:
    assert OPEN.keys() == {each.name for each in fields(Settings)}
    assert GENERATE.keys() == GenerateOptions.__annotations__.keys()
    assert {each.name for each in fields(SamplingParams)} <= GENERATE.keys()
    assert SERVE.keys() == {each.name for each in fields(ServerSettings)}


def sentences(call: Any) -> list[str]:
    """Return the message of a call's error, or of its warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            call()
        except rekindle.RekindleError as error:
            return [str(error)]
    return [str(each.message) for each in warned]


@pytest.mark.parametrize(("settings", "sentence"), cases(OPEN))
def test_a_setting_of_open_without_an_effect_is_refused_or_told(settings: Mapping[str, Any], sentence: str) -> None:
    (message,) = sentences(lambda: rekindle.open(**settings))
    assert message.startswith(sentence)


def test_the_warning_is_about_the_line_of_the_call() -> None:
    with pytest.warns(RuntimeWarning, match="route=") as warned:
        rekindle.open(route="round-robin")
    assert warned[0].filename == __file__


def test_the_settings_in_use_are_told_by_no_word() -> None:
    off: list[dict[str, Any]] = [{}, {"prefix_cache": False}, {"restore": "off"}]
    for settings in (*off, {"host_cache_bytes": 0, "disk_cache_bytes": 0}):
        assert list(idle_settings(Settings(**settings))) == []
    apart = Settings(**APART, prefill_from=16, max_prefill_tokens=64)
    assert list(idle_settings(apart)) == []
    several = Settings(replicas=2, route="round-robin", policy="longest-prefix", prefill_chunk=16)
    assert list(idle_settings(several)) == []


@pytest.fixture(scope="module")
def session() -> Any:
    with fake_session() as session:
        yield session


@pytest.mark.parametrize(("options", "sentence"), cases(GENERATE))
def test_a_parameter_without_an_effect_is_refused_or_told(
    options: Mapping[str, Any], sentence: str, session: Session
) -> None:
    (message,) = sentences(lambda: session.generate_sync(token_ids=[1, 2, 3], **{"max_tokens": 1, **options}))
    assert message.startswith(sentence)


@pytest.mark.parametrize(("settings", "sentence"), cases(SERVE))
def test_a_setting_of_a_server_without_an_effect_is_refused(
    settings: Mapping[str, Any], sentence: str, session: Session
) -> None:
    (message,) = sentences(lambda: session.serve(port=0, **settings))
    assert message.startswith(sentence)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"activations": "int8"}, "activations='int8' has no effect, as it is for packed weights"),
        (
            {"num_pages": 5, "max_context": 256},
            "max_context is 256, and by num_pages the pool of pages has room for 64",
        ),
        ({"pool_bytes": 200_000, "max_context": 256}, "max_context is 256, and by pool_bytes the pool of pages has ro"),
        ({"host_cache_bytes": 10}, "host_cache_bytes=10 has no effect, as a page takes"),
    ],
)
def test_settings_that_a_model_leaves_nothing_to_do(settings: Mapping[str, Any], sentence: str, families: Path) -> None:
    model = families / "qwen3"
    small: dict[str, Any] = {"page_size": 16, "max_context": 64, "num_pages": 9, "max_prefill_tokens": 64}
    if "pool_bytes" in settings:
        del small["num_pages"]
    small |= {"max_running": 2, "precompile": "lazy", "restore": "off", "progress": False, **settings}
    (message,) = sentences(lambda: rekindle.open_sync(model, **small).close_sync())
    assert message.removeprefix(f"{model}: ").startswith(sentence)
