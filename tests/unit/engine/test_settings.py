"""Settings are checked where they are given, and limits fit each other and the model."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.assembly.devices import places_of
from rekindle.assembly.limits.resolution import DEFAULT_POOL_BYTES, check_sizes, resolve_limits, resolve_settings
from rekindle.assembly.loading.blueprint import kv_dtype_of
from rekindle.core.buckets import Bucket
from rekindle.core.errors import ConfigError
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from rekindle.testing import FAKE_MODEL, fake_limits

MULTIPLES = ["page_size", "max_prefill_tokens", "prefill_chunk"]
COUNTS = ["max_running", "max_waiting", "max_executables"]


@pytest.mark.parametrize("name", MULTIPLES)
@pytest.mark.parametrize("value", [0, -16, 8, 24, 16.0, "16", None, True])
def test_a_size_is_a_positive_multiple_of_the_query_block(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a positive multiple of 16, got {value!r}"):
        Settings(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True])
def test_a_count_is_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1, got {value!r}"):
        Settings(**{name: value})


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True])
def test_a_number_of_devices_is_at_least_one_or_left_open(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"tensor must be an integer of at least 1, got {value!r}"):
        Settings(tensor=value)
    assert Settings(tensor=None).tensor is None


def mesh(*axes: str, shape: tuple[int, ...] = (1,)) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:1] * math.prod(shape)).reshape(shape), axes)


@pytest.mark.parametrize("other", [{"device": "cpu"}, {"tensor": 1}])
def test_a_mesh_stands_alone(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"mesh says which devices share the model.*: leave out {next(iter(other))}"):
        Settings(mesh=mesh("tensor"), **other)


@pytest.mark.parametrize("value", [4, "tensor=4", (2, 4), {"data": 2}, np.zeros(8)])
def test_a_mesh_is_one_of_jax(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"mesh must be a jax.sharding.Mesh with an axis \"tensor\", got .*tensor=N"):
        Settings(mesh=value)


def test_the_axes_of_a_mesh_are_known_or_of_one_device() -> None:
    assert Settings(mesh=mesh("tensor")).mesh.shape == {"tensor": 1}
    assert Settings(mesh=mesh("model", "data", shape=(1, 1))).mesh.size == 1
    with pytest.raises(ConfigError, match="mesh has an axis 'model'; known are data, tensor"):
        Settings(mesh=mesh("tensor", "model", shape=(1, 2)))
    assert Settings(mesh=mesh("model", "tensor", shape=(1, 1))).groups == 1
    with pytest.raises(ConfigError, match=r"mesh says which devices .*: leave out data"):
        Settings(mesh=mesh("tensor"), data=2)
    with pytest.raises(ConfigError, match=r"mesh must be a jax.sharding.Mesh, which has devices, got AbstractMesh"):
        places_of(Settings(mesh=jax.sharding.AbstractMesh((1,), ("tensor",))))


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True])
def test_there_may_be_no_logprobs_but_not_fewer(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"max_logprobs must be an integer of at least 0, got {value!r}"):
        Settings(max_logprobs=value)
    assert fake_limits(max_logprobs=0).max_logprobs == 0


def test_no_more_logprobs_are_given_than_there_are_tokens() -> None:
    assert fake_limits(max_logprobs=10**6).max_logprobs == FAKE_MODEL.vocab_size


@pytest.mark.parametrize("name", ["num_pages", "max_context"])
@pytest.mark.parametrize("value", [1, 0, -5, 2.0, "2", True])
def test_a_pool_and_a_context_are_at_least_two_or_left_open(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 2, got {value!r}"):
        Settings(**{name: value})
    left_open: dict[str, Any] = {name: None}
    assert getattr(Settings(**left_open), name) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dtype", "float64", "None, 'float32', 'bfloat16', 'float16'"),
        ("ticks", "decode-first", "'alternate', 'prefill-first', 'combined'"),
        ("overlap", "yes", "True, False"),
        ("precompile", "none", "'all', 'background', 'lazy'"),
        ("sampling_defaults", None, "'model', 'neutral'"),
        ("kv_dtype", "int4", "None, 'float32', 'bfloat16', 'float16', 'int8'"),
    ],
)
def test_a_choice_lists_what_there_is_to_choose(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be one of {expected}, got {value!r}"):
        Settings(**{name: value})


@pytest.mark.parametrize("more", [{"ticks": "combined"}, {"decode_buckets": [1, 32]}, {"prefill_buckets": [16, 512]}])
def test_a_deterministic_session_has_one_shape(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="deterministic=True gives every tick one shape: leave out"):
        Settings(deterministic=True, **more)
    limits = fake_limits(deterministic=True, max_running=8, max_prefill_tokens=64)
    assert (limits.prefill_buckets, limits.decode_buckets) == ((64,), (8,))


def test_a_deterministic_session_has_many_shapes_if_the_kernels_keep_rows_apart() -> None:
    settings = Settings(deterministic=True, max_running=8, max_prefill_tokens=64)
    limits = resolve_limits(settings, FAKE_MODEL, 4, rows_apart=True)
    assert (limits.one_shape, limits.decode_buckets) == (False, fake_limits(max_running=8).decode_buckets)
    assert resolve_settings(settings, limits).deterministic
    with_processor = replace(settings, logits_processor=lambda logits, row: logits)
    assert resolve_limits(with_processor, FAKE_MODEL, 4, rows_apart=True).one_shape, "it need not keep rows apart"


OF_OTHERS = {
    "n_gpu_layers": 'all layers are on one device: device="gpu" or device="cpu"',
    "lora": 'rekindle.open(model, adapters={"name": "DIRECTORY"}) loads adapters',
    "chat_format": "here it is chat_template",
    "chat_templte": "did you mean chat_template?",
    "progres": "did you mean progress?",
    "model_path": "the model is the first argument of rekindle.open()",
    "kv_cache_dtype": "here it is kv_dtype",
    "enable_thinking": (
        'it is a variable of the chat template: chat_template_kwargs={"enable_thinking": False} '
        "of a call, as generate()"
    ),
    "use_mmap": "there is nothing to choose: leave it out",
}
"""Keywords of other libraries' functions that open a model, with their hints."""


@pytest.mark.parametrize(
    ("name", "value", "close"),
    [
        ("dtype", "fp16", "float16"),
        ("dtype", "half", "float16"),
        ("dtype", np.float32, "float32"),
        ("dtype", np.float16, "float16"),
        ("dtype", "fp32", "float32"),
        ("dtype", "bflot16", "bfloat16"),
        ("quantize", "4bit", "int4"),
        ("quantize", "Q4_K_M", "int4"),
        ("quantize", 8, "int8"),
        ("quantize", "INT8", "int8"),
        ("kv_dtype", "fp8", "int8"),
        ("kv_dtype", "q8_0", "int8"),
        ("implementation", "cuda", "gpu"),
        ("restore", "requir", "require"),
        ("quantize", "zzz", None),
        ("dtype", "int4", None),
    ],
)
def test_a_value_of_another_library_is_told_with_the_nearest(name: str, value: Any, close: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be one of ") as raised:
        Settings(**{name: value})
    assert str(raised.value).endswith(f"; did you mean {close!r}?") == (close is not None)
    assert ("did you mean" in str(raised.value)) == (close is not None)


def test_an_unknown_setting_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'max_runing'; did you mean max_running\?"):
        rekindle.open("anything", max_runing=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"unknown setting 'max_model_len'; here it is max_context$"):
        rekindle.open("anything", max_model_len=3)  # type: ignore[call-arg]
    for theirs in ("tensor_parallel_size", "tp", "tp_size", "num_devices", "num_gpus"):
        options: Any = {theirs: 2}
        with pytest.raises(ConfigError, match=rf"unknown setting '{theirs}'; here it is tensor$"):
            rekindle.open("anything", **options)
    with pytest.raises(ConfigError, match=r"unknown setting 'load_in_4bit'; here it is quantize$"):
        rekindle.open("x", load_in_4bit=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"unknown setting 'device_mesh'; here it is mesh$"):
        rekindle.open("anything", device_mesh=3)  # type: ignore[call-arg]
    for theirs, hint in OF_OTHERS.items():
        with pytest.raises(ConfigError) as raised:
            rekindle.open("anything", **{theirs: 3})  # type: ignore[arg-type]
        assert str(raised.value) == f"unknown setting {theirs!r}; {hint}"
    with pytest.raises(
        ConfigError, match=r"unknown setting 'top_p'; it is a sampling parameter, which generate\(\) takes"
    ):
        rekindle.open("some-model", top_p=0.5)  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError,
        match=r"unknown setting 'zzz'; none of the \d+ names is close, which help\(\) of the function lists$",
    ):
        rekindle.open("anything", zzz=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("model", [3, None, b"smollm2-135m-instruct", {"model.norm.weight": None}])
def test_a_model_is_named_by_a_text_or_a_path(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"model must be a str or a path: .*a GGUF file; got ") as raised:
        rekindle.open(model)
    assert str(raised.value).endswith(f"got {model!r}")
    assert "some/where" in repr(rekindle.open(Path("some/where")))


def test_a_context_above_the_models_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_context 4097 is above the model's own, 4096"):
        fake_limits(max_context=4097)
    assert fake_limits(max_context=4096).max_context == 4096


def test_one_request_never_needs_more_than_the_pool() -> None:
    limits = fake_limits(page_size=16, num_pages=4)
    assert limits.max_context == 48
    assert limits.pool.pages_per_request == 3
    limits = fake_limits(page_size=16, num_pages=100, max_context=40)
    assert limits.max_context == 40
    assert limits.pool.pages_per_request == 3


def test_the_default_pool_serves_all_running_requests_in_full_unless_that_is_too_much() -> None:
    limits = fake_limits(page_size=64, max_context=1000, max_running=3)
    assert limits.pool.num_pages == 1 + 3 * 16
    layer = replace(FAKE_MODEL.layers[0], attention=replace(FAKE_MODEL.attentions[0], kv_heads=8, head_dim=128))
    wide = replace(FAKE_MODEL, layers=(layer,) * 30)
    page_bytes = 2 * 30 * 8 * 128 * 64 * 2
    assert resolve_limits(Settings(), wide, itemsize=2).pool.num_pages == 1 + DEFAULT_POOL_BYTES // page_bytes
    huge = replace(wide, layers=(layer,) * 10**6)
    assert resolve_limits(Settings(), huge, itemsize=2).pool.num_pages == 2, "one page is needed to serve anything"


def test_pages_of_int8_are_refused_for_latents_and_named(families: Path) -> None:
    model = open_checkpoint(families / "deepseek-v3").config
    with pytest.raises(ConfigError, match=r'kv_dtype must not be "int8" .* latent attention.*pass "bfloat16"'):
        resolve_limits(Settings(kv_dtype="int8"), model, 1)
    resolve_limits(Settings(kv_dtype="bfloat16"), model, 2)


def test_pages_of_int8_are_refused_where_they_have_no_kernels() -> None:
    float32, int8 = jnp.dtype("float32"), Settings(kv_dtype="int8")
    with pytest.raises(ConfigError, match=r'kv_dtype must not be "int8" on TPUs: .* Leave it out'):
        kv_dtype_of(int8, float32, "tpu")
    assert kv_dtype_of(int8, float32, "gpu") == "int8"
    assert kv_dtype_of(Settings(), float32, "tpu") == "float32"


def test_a_chunk_is_no_larger_than_a_tick() -> None:
    assert fake_limits(max_prefill_tokens=64, prefill_chunk=512).prefill_chunk == 64
    assert fake_limits(max_prefill_tokens=512, prefill_chunk=64).prefill_chunk == 64


def test_overlap_keeps_two_ticks_in_flight() -> None:
    assert fake_limits(overlap=True).depth == 2
    assert fake_limits(overlap=False).depth == 1


def test_given_buckets_are_checked_against_the_limits() -> None:
    limits = fake_limits(max_prefill_tokens=64, max_running=8, prefill_buckets=[64, 16], decode_buckets=[8])
    assert limits.prefill_buckets == (16, 64)
    assert limits.decode_buckets == (8,)
    with pytest.raises(ConfigError, match="prefill_buckets"):
        fake_limits(max_prefill_tokens=64, prefill_buckets=[16])
    with pytest.raises(ConfigError, match="decode_buckets"):
        fake_limits(max_running=8, decode_buckets=[16])


@pytest.mark.parametrize("ticks", ["alternate", "prefill-first", "combined"])
def test_the_largest_tick_has_a_bucket(ticks: Any) -> None:
    limits = fake_limits(ticks=ticks)
    largest = max(limits.all_buckets())
    assert largest == (Bucket(512, 32 if ticks == "combined" else 0))


def test_ahead_of_time_mode_keeps_every_program() -> None:
    """Check this because a program that is dropped would have to be compiled again after `open`."""
    with pytest.raises(ConfigError, match="need 34 programs, and max_executables keeps 24"):
        fake_limits(ticks="combined", max_executables=24)
    assert len(fake_limits(ticks="combined", max_executables=34).all_buckets()) == 29, "and five beside them"
    assert len(fake_limits(ticks="combined", max_executables=24, precompile="lazy").all_buckets()) == 29


def test_a_users_sizes_are_sorted_and_told_apart() -> None:
    assert check_sizes("prefill_buckets", [64, 16, 64], "max_prefill_tokens", 64, 16) == (16, 64)


@pytest.mark.parametrize(
    "sizes", [[], [16], [0, 64], [-16, 64], [24, 64], [64, 128], [64.0], [True, 64], ["64"], [None, 64], 64, "64", None]
)
def test_sizes_that_cannot_be_served_are_named_with_what_was_expected(sizes: list[int]) -> None:
    expected = "prefill_buckets must be multiples of 16 from 16 to 64 and contain max_prefill_tokens, 64, got"
    with pytest.raises(ConfigError, match=expected):
        check_sizes("prefill_buckets", sizes, "max_prefill_tokens", 64, 16)


def test_sizes_of_rows_need_be_no_multiple_of_anything() -> None:
    assert check_sizes("decode_buckets", [3, 1], "max_running", 3) == (1, 3)
    expected = r"decode_buckets must be numbers from 1 to 3 and contain max_running, 3, got \[2\]"
    with pytest.raises(ConfigError, match=expected):
        check_sizes("decode_buckets", [2], "max_running", 3)


def test_pages_reach_the_disk_only_through_a_host_tier_that_has_room_for_one() -> None:
    page = fake_limits().pool.page_bytes
    assert [fake_limits(host_cache_bytes=size).pool.snapshots for size in (0, page - 1, page)] == [False, False, True]
    assert [fake_limits(disk_cache_bytes=size).pool.snapshots for size in (0, 1)] == [False, True]
    assert not fake_limits(restore="off").pool.snapshots
