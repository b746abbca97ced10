"""Every wrong setting and sampling parameter has an error with its name, the expected value, and the actual one."""

import math
from typing import Any

import pytest

import rekindle
from rekindle import SamplingParams, Settings

WRONG_SETTINGS: list[tuple[str, Any, str]] = [
    ("pool_bytes", "lots", 'must be a number of bytes, or a size such as "500MB" or "1.5GiB"'),
    ("pool_bytes", -1, "must be an integer of at least 2"),
    ("pool_bytes", 1.5, "must be an integer of at least 2"),
    ("pool_bytes", "1XB", 'must be a number of bytes, or a size such as "500MB" or "1.5GiB"'),
    ("host_cache_bytes", "big", 'must be a number of bytes, or a size such as "500MB" or "1.5GiB"'),
    ("disk_cache_bytes", -1, "must be an integer of at least 0"),
    ("disk_cache_bytes", None, "must be an integer of at least 0"),
    ("weight_cache_bytes", -1, "must be an integer of at least 0"),
    ("weight_cache_bytes", "many", 'must be a number of bytes, or a size such as "500MB" or "1.5GiB"'),
    ("page_size", 0, "must be a positive multiple of 16"),
    ("page_size", 10, "must be a positive multiple of 16"),
    ("page_size", "64", "must be a positive multiple of 16"),
    ("max_running", 0, "must be an integer of at least 1"),
    ("max_running", True, "must be an integer of at least 1"),
    ("max_running", "8", "must be an integer of at least 1"),
    ("max_context", 1, "must be an integer of at least 2"),
    ("max_context", "8k", "must be an integer of at least 2"),
    ("num_pages", 1, "must be an integer of at least 2"),
    ("tensor", 0, "must be an integer of at least 1"),
    ("tensor", "2", "must be an integer of at least 1"),
    ("data", 0, "must be an integer of at least 1"),
    ("replicas", 0, "must be an integer of at least 1, or a rekindle.Ray"),
    ("replicas", "2", "must be an integer of at least 1, or a rekindle.Ray"),
    ("max_waiting", 0, "must be an integer of at least 1"),
    ("max_prefill_tokens", 7, "must be a positive multiple of 16"),
    ("prefill_chunk", 0, "must be a positive multiple of 16"),
    ("decode_steps", 0, "must be an integer of at least 1"),
    ("decode_steps", 1000000, "must be at most 16"),
    ("max_adapters", 0, "must be an integer of at least 1"),
    ("max_adapter_rank", -1, "must be an integer of at least 1"),
    ("watchdog_timeout", 0, "must be a positive number of seconds, or math.inf"),
    ("watchdog_timeout", "10s", "must be a positive number of seconds, or math.inf"),
    ("dtype", "fp16", "must be one of None, 'float32', 'bfloat16', 'float16'"),
    ("dtype", "float64", "must be one of None, 'float32', 'bfloat16', 'float16'"),
    ("kv_dtype", "fp8", "must be one of None, 'float32', 'bfloat16', 'float16', 'int8'"),
    ("kv_dtype", "q8_0", "must be one of None, 'float32', 'bfloat16', 'float16', 'int8'"),
    ("quantize", "4bit", "must be one of None, 'int8', 'int4'"),
    ("quantize", True, "must be one of None, 'int8', 'int4'"),
    ("quantize", "q4_k_m", "must be one of None, 'int8', 'int4'"),
    ("weights", "quantized", "must be one of 'auto', 'packed', 'dequantized', None (update_weights takes others)"),
    ("implementation", "cuda", "must be one of None, 'xla', 'reference', 'cpu', 'tpu', 'gpu'"),
    ("ticks", "mixed", "must be one of 'alternate', 'prefill-first', 'combined'"),
    (
        "policy",
        "fifo",
        "must be one of 'fcfs', 'longest-prefix', 'dfs-weight', ",
    ),
    (
        "policy",
        None,
        "must be one of 'fcfs', 'longest-prefix', 'dfs-weight', ",
    ),
    (
        "route",
        "least",
        "must be one of 'prefix', 'round-robin', 'shortest-queue' or a function of a request and the lanes",
    ),
    ("precompile", True, "must be one of 'all', 'background', 'lazy'"),
    ("restore", "never", "must be one of 'auto', 'require', 'off'"),
    ("restore", False, "must be one of 'auto', 'require', 'off'"),
    ("deterministic", "yes", "must be one of True, False"),
    ("prefix_cache", 1.5, "must be one of True, False"),
    ("overlap", "no", "must be one of True, False"),
    ("sampling_defaults", "openai", "must be one of 'model', 'neutral'"),
    ("logits_processor", [1], "must be a function of logits and a rekindle.LogitsRow"),
    ("device", "", 'must name a platform, such as "gpu" or "gpu:1", and is empty: leave it out'),
    ("prefill", "cpu:0", "and decode go together: give decode its devices too, or neither"),
    ("mesh", 3, 'must be a jax.sharding.Mesh with an axis "tensor", got 3; tensor=N takes the first N devices'),
    ("activations", "int4", "must be one of None, 'int16', 'int8', 'bfloat16', 'float16', 'exact'"),
    ("max_executables", 0, "must be an integer of at least 1"),
    ("max_logprobs", -1, "must be an integer of at least 0"),
]
WRONG_PARAMETERS: list[tuple[str, Any, str]] = [
    ("temperature", -1, "must be a finite number of at least 0 and at most 100"),
    ("temperature", "hot", "must be a finite number of at least 0 and at most 100"),
    ("temperature", math.nan, "must be a finite number of at least 0 and at most 100"),
    ("top_p", 1.5, "must be a finite number of at least 0 and at most 1"),
    ("top_p", "x", "must be a finite number of at least 0 and at most 1"),
    ("top_k", -2, "must be an integer from -1 to 2147483647"),
    ("top_k", 1.5, "must be an integer from -1 to 2147483647"),
    ("min_p", 2, "must be a finite number of at least 0 and at most 1"),
    ("max_tokens", -1, "must be an integer from 0 to 1073741824"),
    ("max_tokens", "10", "must be an integer from 0 to 1073741824"),
    ("max_tokens", 1.5, "must be an integer from 0 to 1073741824"),
    ("min_tokens", -1, "must be an integer from 0 to 1073741824"),
    ("seed", "abc", "must be an integer from -1 to 18446744073709551615"),
    ("stop", [1], "must be a text or a sequence of texts, none of them empty, got [1], which has 1 in place 0"),
    ("stop", "", "must be a text or a sequence of texts, none of them empty"),
    ("stop_token_ids", "a", "must be a sequence of integers"),
    ("logprobs", -2, "must be an integer from -1 to 2147483647"),
    ("logprobs", "all", "must be an integer from -1 to 2147483647"),
    ("n", 1, "is for generate(): a stream or a handle is one sample; submit several requests"),
    ("frequency_penalty", 9, "must be a finite number of at least -2 and at most 2"),
    ("presence_penalty", "x", "must be a finite number of at least -2 and at most 2"),
    ("repetition_penalty", 0, "must be a finite number of at least 0.001 and at most 1000"),
    ("repetition_penalty", -1, "must be a finite number of at least 0.001 and at most 1000"),
    ("logit_bias", [1], "must be a mapping of token ids to numbers"),
    ("logit_bias", {"a": 1}, "the keys of logit_bias must be a sequence of integers, got ('a',)"),
    (
        "logit_bias",
        {1: "x"},
        "the values of logit_bias must be a finite number of at least -1e+06 and at most 1e+06, got 'x'",
    ),
    ("bad_words", "word", "must be a sequence of texts or of token id sequences"),
    ("bad_words", [""], "must have no empty word"),
    ("allowed_token_ids", [], "is empty; give at least one token id, or None to allow all"),
    ("allowed_token_ids", [1.5], "must be a sequence of integers"),
    ("ignore_eos", 1, "must be True or False"),
    ("skip_special_tokens", "no", "must be True or False"),
    ("regex", 3, "must be a str"),
    ("choice", [], "must be a sequence of texts, none of them empty"),
    ("choice", [1], "must be a sequence of texts, none of them empty"),
    ("grammar", 3, "must be a str"),
    ("json_schema", "x", "must be a JSON schema, and this text is not JSON"),
    ("json_schema", 3, "must be a JSON schema as a dict, or a type such as a pydantic model or a dataclass"),
    ("priority", "high", "must be an integer from -2147483648 to 2147483647"),
    ("cache_salt", 3, "must be a str"),
    ("adapter", 3, "must be a str"),
    ("truncate_prompt_tokens", 0, "must be at least 1, or -1 for as many tokens as fit"),
    ("truncation_side", "middle", 'must be "left" or "right"'),
    ("prompt_logprobs", "x", "must be an integer from -1 to 2147483647"),
]
WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model must be a str or a path: "),
    ({"model": b"x"}, "a hub id owner/name, or a GGUF file; got b'x'"),
    ({"model": ["a"]}, "got ['a']"),
    ({"compose": 3}, "compose must be a function of an engine's Actors that returns Actors, got 3"),
    ({"family": "llama"}, "family must be a rekindle.Family, got 'llama'"),
    ({"revision": ""}, "revision must name a branch, a tag or a commit of a model on the hub, got ''"),
    ({"chat_template": "plain"}, "for a file, pass Path(...).read_text(); got 'plain'"),
    ({"chat_template": "{{"}, "chat_template cannot be read: unexpected 'end of template'"),
    ({"hosts": "a:1"}, "hosts must be a rekindle.Hosts, got 'a:1'"),
    ({"adapters": ["x"]}, 'adapters must map names to directories, such as {"sql": "path"}; got'),
    ({"adapters": {"a": 3}}, "adapters must map names to directories"),
    ({"temperature": 0.5}, "it is a sampling parameter, which generate() takes"),
    ({"max_model_len": 3}, "here it is max_context"),
    ({"load_in_4bit": True}, "here it is quantize"),
    ({"quantisation": "int8"}, "here it is quantize"),
    ({"gpu_memory_utilization": 0.9}, "here it is pool_bytes"),
    ({"tensor_parallel_size": 2}, "here it is tensor"),
    ({"pol_bytes": 3}, "did you mean pool_bytes?"),
    ({"torch_dtype": "x"}, "here it is dtype"),
    ({"device_map": "auto"}, "here it is device"),
    ({"n_ctx": 3}, "here it is max_context"),
    ({"trust_remote_code": True}, "no code of a model is run: leave it out"),
    ({"token": "x"}, "log in by `hf auth login`, or set HF_TOKEN"),
    ({"cache_dir": "x"}, "set HF_HOME for downloaded models, and REKINDLE_CACHE for programs and pages"),
    ({"verbose": True}, "progress=False hides the progress"),
    ({"device": "cuda:0"}, "pip install 'rekindle-llm[cuda]' adds it where the machine has one"),
    ({"device": "mps"}, "on a Mac, Rekindle computes on the CPU: leave device out"),
    ({"device": "cpu:99"}, "counted from 0"),
    ({"device": 3}, 'device must be a platform such as "gpu", "gpu:1", or a jax.Device; got 3'),
    ({"model": "auto", "revision": "x"}, "leave out family, revision and hosts, or name a model"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_SETTINGS)
def test_a_wrong_setting_is_named_with_what_was_expected(name: str, value: Any, message: str) -> None:
    with pytest.raises(rekindle.ConfigError) as raised:
        Settings(**{name: value})
    assert message in str(raised.value)


@pytest.mark.parametrize(("name", "value", "message"), WRONG_PARAMETERS)
def test_a_wrong_parameter_is_named_with_what_was_expected(name: str, value: Any, message: str) -> None:
    with pytest.raises(rekindle.InvalidRequest) as raised:
        SamplingParams.from_options({name: value}, {})
    assert message in str(raised.value)


@pytest.mark.parametrize(("arguments", "cure"), WRONG_ARGUMENTS, ids=range(len(WRONG_ARGUMENTS)))
def test_a_wrong_argument_of_open_has_a_cure(arguments: dict[str, Any], cure: str) -> None:
    with pytest.raises(rekindle.ConfigError) as raised:
        rekindle.open_sync(**arguments, progress=False)
    assert cure in str(raised.value)


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 5 * 10**8), ("2G", 2 * 10**9), ("1.5 GiB", 3 << 29), ("64k", 64_000), ("128", 128)]
)
def test_settings_in_bytes_take_sizes_as_text(text: str, size: int) -> None:
    sizes: Any = dict.fromkeys(("pool_bytes", "host_cache_bytes", "disk_cache_bytes"), text)
    settings = Settings(**sizes)
    assert (settings.pool_bytes, settings.host_cache_bytes, settings.disk_cache_bytes) == (size, size, size)
