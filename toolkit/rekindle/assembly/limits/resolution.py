"""Settings resolved for one model."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from rekindle.assembly.limits.model_checks import check_model
from rekindle.core import buckets
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.config.scaling import DynamicScaling
from rekindle.core.scheduler.limits import DEFAULT_ADAPTERS, DEFAULT_RANK, EngineLimits, PoolLimits
from rekindle.settings.engine import DEFAULT_CHUNK, Settings

DEFAULT_POOL_BYTES = 1 << 30
MAX_WHOLE_PROMPT = 2048
"""Most tokens of a prompt in one chunk by default, of a model that reads it in both directions."""
ENCODER_TOKENS = 2048
"""Prompt tokens in a tick by default, of an encoder: with 512, texts of 160 tokens leave a seventh of a tick empty."""


def resolve_limits(
    settings: Settings,
    model: ModelConfig,
    itemsize: int,
    *,
    rows_apart: bool = False,
    shares_cores: bool = False,
    page_bytes: int | None = None,
    state_bytes: int | None = None,
    pool_bytes: int = DEFAULT_POOL_BYTES,
    picture_rows: int = 0,
    segments: tuple[int, ...] = (),
    picture_tokens: int = 0,
) -> EngineLimits:
    """Resolve settings for a model whose pages hold numbers of `itemsize` bytes.

    Args:
        rows_apart: whether the kernels compute a row to the same bits in any tick. A logits processor need not.
        shares_cores: see `EngineLimits`.
        page_bytes: the bytes of a page over all layers, as stored by the kernels; None for the bytes of its numbers.
        state_bytes: the bytes of a copy of a request's state; None for the bytes of its numbers.
        pool_bytes: the size of the pool, unless the settings give one.
        picture_rows, segments: see `EngineLimits`.
        picture_tokens: the most adjacent tokens of an image.

    Raises:
        ConfigError: the settings contradict each other or the model.
    """
    check_model(settings, model)
    settings = _with_whole_prompts(settings, model) if model.both_ways else settings
    if picture_tokens and model.images_both_ways:
        settings = _with_whole_images(settings, picture_tokens)
    max_context = settings.max_context or model.max_context
    if page_bytes is None:
        page_bytes = model.numbers_per_token * settings.page_size * itemsize
    state_bytes = model.state_bytes if state_bytes is None else state_bytes
    pool = _pool_limits(settings, max_context, page_bytes, pool_bytes, state_bytes)
    one_shape = settings.deterministic and not (rows_apart and settings.logits_processor is None)
    prefill_buckets, decode_buckets = _bucket_sizes(settings, one_shape)
    by_length = model.scalings_by_length
    chunk = min(settings.prefill_chunk, settings.max_prefill_tokens)
    limits = EngineLimits(
        pool=pool,
        max_context=min(max_context, pool.tokens, chunk if model.both_ways else max_context),
        max_running=settings.max_running,
        max_prefill_tokens=settings.max_prefill_tokens,
        prefill_chunk=chunk,
        ticks=settings.ticks,
        one_shape=one_shape,
        policy=settings.policy,
        prefix_cache=settings.prefix_cache,
        depth=2 if settings.overlap else 1,
        prefill_buckets=prefill_buckets,
        decode_buckets=decode_buckets,
        max_logprobs=min(settings.max_logprobs, model.vocab_size),
        processes_logits=settings.logits_processor is not None,
        long_from=min((each.original_context for each in by_length), default=None),
        grows=any(isinstance(each, DynamicScaling) for each in by_length),
        data=settings.groups,
        lanes=settings.lane_count,
        decode_steps=settings.decode_steps,
        max_adapters=settings.max_adapters or DEFAULT_ADAPTERS,
        max_adapter_rank=settings.max_adapter_rank or DEFAULT_RANK,
        expects_adapters=settings.max_adapters is not None,
        draft=settings.draft,
        picture_rows=picture_rows,
        coordinates=picture_rows > 0 and model.takes_coordinates,
        segments=segments,
        whole_prompts=model.both_ways,
        decodes=model.predicts,
        whole_images=picture_rows > 0 and model.images_both_ways,
        shares_cores=shares_cores,
    )
    _check_executables(settings, limits)
    return limits


def _with_whole_prompts(settings: Settings, model: ModelConfig) -> Settings:
    """Return the settings for prompts in one chunk: by default, room for the longest, or for many of an encoder."""
    longest = settings.max_context or min(model.max_context, MAX_WHOLE_PROMPT)
    tokens = settings.max_prefill_tokens
    if tokens == DEFAULT_CHUNK and settings.prefill_buckets is None:
        tokens = tokens if model.predicts else ENCODER_TOKENS
        tokens = max(tokens, -(-longest // buckets.QUERY_BLOCK) * buckets.QUERY_BLOCK)
    chunk = tokens if settings.prefill_chunk == DEFAULT_CHUNK else settings.prefill_chunk
    return replace(settings, max_prefill_tokens=tokens, prefill_chunk=chunk)


def _with_whole_images(settings: Settings, tokens: int) -> Settings:
    """Return the settings with room for all tokens of an image in a chunk, which begins with a query block.

    Raises:
        ConfigError: the settings have less room.
    """
    least = -(-(tokens + buckets.QUERY_BLOCK - 1) // buckets.QUERY_BLOCK) * buckets.QUERY_BLOCK
    if settings.max_prefill_tokens == settings.prefill_chunk == DEFAULT_CHUNK < least and not settings.prefill_buckets:
        return replace(settings, max_prefill_tokens=least, prefill_chunk=least)
    for name in ("max_prefill_tokens", "prefill_chunk"):
        size = getattr(settings, name)
        if size < least and (name == "max_prefill_tokens" or size != DEFAULT_CHUNK):
            raise ConfigError(
                f"{name} must be at least {least} for this model, got {size}: the {tokens} tokens of an image see each "
                "other, so that one tick computes all of them. Pass image_bytes=0 to open it without images"
            )
    return settings


def resolve_settings(settings: Settings, limits: EngineLimits) -> Settings:
    """Return the settings with the values of their limits in place of defaults."""
    same = {
        field.name: getattr(part, field.name)
        for part in (limits, limits.pool)
        for field in fields(part)
        if hasattr(settings, field.name)
    }
    same["pool_bytes"] = None  # num_pages replaces it
    same["data"] = settings.data  # the mesh may define it instead
    if settings.deterministic:  # it chooses the buckets itself and accepts none
        same |= {"prefill_buckets": None, "decode_buckets": None}
    return replace(settings, **same)


def _pool_limits(
    settings: Settings, max_context: int, page_bytes: int, pool_bytes: int, state_bytes: int
) -> PoolLimits:
    """Resolve the settings of the pool.

    Raises:
        ConfigError: `pool_bytes` is too small for one page and the null page.
    """
    full_request = -(-max_context // settings.page_size)
    num_pages = _pages(settings, page_bytes)
    if num_pages is None:
        num_pages = 1 + min(max(1, pool_bytes // page_bytes), settings.max_running * full_request)
    share = page_bytes * settings.groups * settings.lane_count
    host_pages = settings.host_cache_bytes // share if settings.prefix_cache else 0
    return PoolLimits(
        page_size=settings.page_size,
        num_pages=num_pages,
        pages_per_request=min(full_request, num_pages - 1),
        page_bytes=page_bytes,
        host_pages=host_pages,
        snapshots=settings.restore != "off" and settings.disk_cache_bytes > 0 and host_pages > 0,
        state_bytes=state_bytes,
    )


def _check_executables(settings: Settings, limits: EngineLimits) -> None:
    programs = limits.program_count(adapters=limits.expects_adapters)
    if settings.precompile != "lazy" and programs > settings.max_executables:
        raise ConfigError(
            f"these settings need {programs} programs, and max_executables keeps {settings.max_executables}; "
            'raise it, give fewer prefill_buckets or decode_buckets, or choose precompile="lazy"'
        )


def _pages(settings: Settings, page_bytes: int) -> int | None:
    """Return the number of pages given by the settings, or None.

    Raises:
        ConfigError: `pool_bytes` is too small for one page and the null page.
    """
    if settings.pool_bytes is None:
        return settings.num_pages
    if settings.pool_bytes < 2 * page_bytes:
        raise ConfigError(
            f"pool_bytes must be at least {2 * page_bytes:,} for this model, two pages of {settings.page_size} tokens, "
            f"got {settings.pool_bytes:,}"
        )
    return settings.pool_bytes // page_bytes


def _bucket_sizes(settings: Settings, one_shape: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of prefill and of decode buckets, ascending; only the largest for `one_shape`.

    Raises:
        ConfigError: see `check_sizes`.
    """
    tokens, running = settings.max_prefill_tokens, settings.max_running
    prefill = (tokens,) if one_shape else settings.prefill_buckets
    decode = (running,) if one_shape else settings.decode_buckets
    return (
        buckets.default_prefill_buckets(tokens)
        if prefill is None
        else check_sizes("prefill_buckets", prefill, "max_prefill_tokens", tokens, buckets.QUERY_BLOCK),
        buckets.default_decode_buckets(running)
        if decode is None
        else check_sizes("decode_buckets", decode, "max_running", running),
    )


def check_sizes(name: str, sizes: Any, largest: str, limit: int, multiple: int = 1) -> tuple[int, ...]:
    """Check a user's list of sizes; return it as a sorted tuple without duplicates.

    Args:
        name: the name of the setting.
        largest: the name of the setting with the largest size.
        limit: the largest size, a required member of the list.
        multiple: the common divisor of all sizes.

    Raises:
        ConfigError: a size is not a positive multiple, or above the limit, or the limit is missing.
    """
    right = isinstance(sizes, Sequence) and all(
        isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= limit and size % multiple == 0
        for size in sizes
    )
    if not right or limit not in sizes:
        what = f"multiples of {multiple}" if multiple > 1 else "numbers"
        raise ConfigError(
            f"{name} must be {what} from {multiple} to {limit} and contain {largest}, {limit}, got {sizes!r:.80}"
        )
    return tuple(sorted(set(sizes)))
