"""The blueprint of an engine, made before any weights are read: its limits, its programs, and its store keys."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, Final, cast

import jax.numpy as jnp

from rekindle.assembly.devices import default_dtype
from rekindle.assembly.limits.resolution import resolve_limits, resolve_settings
from rekindle.assembly.loading.budget import Budget
from rekindle.assembly.loading.forms import weight_form
from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.place import Place
from rekindle.core.device.programs.functions import (
    ADAPT,
    ALLOW,
    EMPTY,
    ENTER,
    GATHER,
    GATHER_EMBEDDINGS,
    GATHER_STATE,
    SCATTER,
    SCATTER_EMBEDDINGS,
    SCATTER_STATE,
    STEER,
    UNSTEERED,
    Key,
    embed_program,
    program_name,
)
from rekindle.core.device.programs.key import ProgramKey, SharedKey, Target
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.programs.shapes import ModelShapes
from rekindle.core.device.programs.vision_shapes import VisionSizes
from rekindle.core.device.state import Sizes
from rekindle.core.engine.watchdog import timeout_of
from rekindle.core.errors import ConfigError
from rekindle.core.models.adapters.products import AdapterSizes
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.settings.engine import Dtype, KvDtype, Precompile, Settings, WeightsChoice
from rekindle_kernels.api import is_batch_invariant

LOADED_AT_ONCE = 3
"""Stored programs loaded while the weights are read; the others wait until the engine is quiet."""

IMAGE_BYTES: Final = 64 << 20
"""Room for the embeddings of images, unless two of the largest images of a model need more."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The sizes, programs and store keys of one lane, known before any weights are read.

    Attributes:
        checkpoint: the model; its weights are not read.
        place: devices of the engine; they need not be attached.
        form: form of the weights; its dtype is that of the pages by default.
        kv_dtype: data type of keys and values in pages.
        limits: resolved settings.
        programs: lowering of each program.
        budget: memory of the devices used in addition to the pages.
    """

    checkpoint: Checkpoint
    place: Place
    form: WeightForm
    kv_dtype: jnp.dtype
    limits: EngineLimits
    programs: Programs
    budget: Budget

    @classmethod
    def of(cls, checkpoint: Checkpoint, settings: Settings, place: Place, workspace: int | None = None) -> "Blueprint":
        """Resolve settings for a model and a device.

        Args:
            workspace: the compiler's figure for the temporary bytes of the largest step; None for a bound.

        Raises:
            ConfigError: the settings do not fit the model.
        """
        checkpoint = checkpoint.with_draft_head() if settings.draft == "mtp" else checkpoint
        config = checkpoint.config
        dtype = jnp.dtype(settings.dtype or default_dtype(place.first))
        kv_dtype = kv_dtype_of(settings, dtype, place.first.platform)
        vision = vision_sizes(checkpoint, settings)
        picture_tokens = 0 if vision is None else vision.segments[-1] // vision.config.merge**2
        limits = resolve_limits(settings, config, kv_dtype.itemsize, picture_tokens=picture_tokens)
        form = weight_form(checkpoint, settings, dtype, place)
        shapes = _shapes(config, settings, limits, (form, kv_dtype), place, vision)
        adapters = shapes.adapter_bytes if limits.expects_adapters else 0
        budget = Budget.of(shapes, config, limits, place, workspace, adapters + shapes.vision_bytes)
        limits = resolve_limits(
            settings,
            config,
            kv_dtype.itemsize,
            rows_apart=is_batch_invariant(shapes.implementation),
            shares_cores=place.first.platform == "cpu",
            page_bytes=shapes.state.page_bytes,
            state_bytes=shapes.state.state_bytes,
            pool_bytes=budget.pool(settings.prefix_cache),
            picture_rows=0 if vision is None else vision.rows,
            segments=() if vision is None else vision.segments,
            picture_tokens=picture_tokens,
        )
        _check_context(settings, limits)
        programs = _programs(config, settings, limits, (form, kv_dtype), place, vision)
        return cls(checkpoint, place, form, kv_dtype, limits, programs, budget)

    def at(self, place: Place, settings: Settings) -> "Blueprint":
        """Return the blueprint for other devices of the same kind, with the original `settings`."""
        forms, vision = (self.form, self.kv_dtype), vision_sizes(self.checkpoint, settings)
        programs = _programs(self.checkpoint.config, settings, self.limits, forms, place, vision)
        return replace(self, place=place, programs=programs, budget=replace(self.budget, place=place))

    @property
    def dtype(self) -> jnp.dtype:
        """The data type of unpacked weights, and of pages by default."""
        return self.form.dtype

    @property
    def largest_step(self) -> Bucket:
        """The step with the most temporary memory."""
        return max(self.limits.all_buckets(), key=attrgetter("size"))

    def resolve(self, settings: Settings) -> Settings:
        """Return the settings with all choices filled in."""
        devices: dict[str, Any] = {
            "device": f"{self.place.first.platform}:{self.place.first.id}",
            "tensor": self.place.tensor,
        }
        return replace(
            resolve_settings(settings, self.limits),
            **({} if settings.mesh is not None or settings.prefill is not None else devices),
            implementation=self.programs.shapes.implementation,
            dtype=cast(Dtype, self.dtype.name),
            weights=settings.weights and self._weights,
            activations=self.form.activations if self.form.kinds else settings.activations,
            kv_dtype=cast(KvDtype, self.kv_dtype.name),
            watchdog_timeout=timeout_of(settings.watchdog_timeout, self.place.first.platform),
        )

    @property
    def _weights(self) -> WeightsChoice:
        """The form of the file's weights, before they are quantized."""
        return "packed" if self.form.kinds and self.form.quantize is None else "dequantized"

    @property
    def first_programs(self) -> list[Key]:
        """The smallest set of programs for any request: the empty state, the largest prefill, the smallest decode."""
        prefill, decode = self.limits.prefill_buckets[-1], self.limits.decode_buckets[0]
        first: list[Key] = [EMPTY, self.limits.bucket(prefill, 0), self.limits.bucket(0, decode)]
        return [key for key in first if key == EMPTY or key in self.limits.all_buckets()]

    def all_programs(self, *, cached: bool = False) -> list[Key]:
        """Return every program, most urgent first.

        Args:
            cached: True if most of each prompt is likely cached.
        """
        little: list[Key] = [SCATTER, self.limits.bucket(self.limits.prefill_buckets[0], 0)]
        largest = _largest_first(self.limits)
        first = [EMPTY, *little, *self.first_programs] if cached else [*self.first_programs, *little]
        has_states = self.programs.shapes.state.state is not None
        copies: list[Key] = [GATHER, GATHER_STATE, SCATTER_STATE] if has_states else [GATHER]
        adapted = adapter_programs(self.limits) if self.limits.expects_adapters else []
        pictured = picture_programs(self.limits) if self.limits.picture_rows else []
        return list(dict.fromkeys([*first, *pictured[:2], *copies, ENTER, ALLOW, *largest, *pictured, *adapted]))

    def in_turn(
        self, precompile: Precompile, keys: Sequence[Key], stored: Collection[Key]
    ) -> tuple[Sequence[Key], Sequence[Key], bool]:
        """Return the programs to prepare first, those for quiet times, and whether requests wait for the first.

        Args:
            keys: all programs, most urgent first.
            stored: the stored programs.
        """
        match precompile:
            case "all":
                return keys, [], True
            case "lazy":
                return [EMPTY], [], True
        loadable = [key for key in keys if key in stored]
        if len(loadable) == len(keys):
            return keys[:LOADED_AT_ONCE], keys[LOADED_AT_ONCE:], False
        beginnings = (loadable[:count] for count in range(1, len(loadable) + 1))
        first = next(filter(serves, beginnings), None)
        later = [*loadable, *(key for key in keys if key not in stored)]
        wait, first = first is None, first or self.first_programs
        return first, [key for key in later if key not in first], wait

    def program_keys(self) -> Callable[[Key], ProgramKey]:
        """Return a function from programs to their keys. Its first call reads the flags of XLA, for all keys."""
        config, programs, target = self.checkpoint.config, self.programs, Target.of(self.place.devices)
        build = cache(lambda: SharedKey.of(config, target, programs.jax_settings, programs.shapes.implementation))
        return lambda key: ProgramKey.of(build(), program_name(key), programs.statics_of(key), programs.arguments(key))

    @property
    def one_program(self) -> str:
        """The digest of the program of all prompts, where rows have other bits in another; else empty."""
        if not self.limits.one_shape or is_batch_invariant(self.programs.shapes.implementation):
            return ""
        return self.program_keys()(self.limits.bucket(self.limits.prefill_buckets[-1], 0)).digest


def _check_context(settings: Settings, limits: EngineLimits) -> None:
    """Refuse a pool of a given size that has no room for the given context."""
    name = "num_pages" if settings.num_pages is not None else "pool_bytes" if settings.pool_bytes is not None else None
    if name is not None and settings.max_context is not None and settings.max_context > limits.max_context:
        raise ConfigError(
            f"max_context is {settings.max_context:,}, and by {name} the pool of pages has room for "
            f"{limits.max_context:,} tokens: raise {name}, or lower max_context"
        )


def kv_dtype_of(settings: Settings, dtype: jnp.dtype, platform: str) -> jnp.dtype:
    """Return the data type of pages on a platform, given that of weights.

    Raises:
        ConfigError: the platform has no kernels for pages of this type.
    """
    if settings.kv_dtype == "int8" and platform == "tpu":
        raise ConfigError(
            'kv_dtype must not be "int8" on TPUs: there are no kernels for it, and XLA would pad its rows to the size '
            "of bfloat16. Leave it out"
        )
    return jnp.dtype(settings.kv_dtype or dtype)


def adapter_programs(limits: EngineLimits) -> list[Key]:
    """Return the programs for adapters, without and with images, largest first."""
    steps = [bucket._replace(adapters=True) for bucket in _largest_first(limits)]
    return [ADAPT, *steps, *_pictured(steps, limits)]


def picture_programs(limits: EngineLimits) -> list[Key]:
    """Return the programs for images: the tower's, and the steps with prompt tokens, each largest first."""
    steps = _pictured([bucket._replace(adapters=limits.expects_adapters) for bucket in _largest_first(limits)], limits)
    first, *others = map(embed_program, reversed(limits.segments))
    copies = [GATHER_EMBEDDINGS, SCATTER_EMBEDDINGS] if limits.pool.snapshots else []
    return [first, *steps[:1], *others, *copies, *steps[1:]]


def _largest_first(limits: EngineLimits) -> list[Bucket]:
    return sorted(limits.all_buckets(), key=attrgetter("size"), reverse=True)


def _pictured(steps: Sequence[Bucket], limits: EngineLimits) -> list[Bucket]:
    """Return the steps that may have tokens of images in prompts, for these."""
    return [step._replace(pictures=True) for step in steps if step.prefill_tokens and limits.picture_rows]


def vision_sizes(checkpoint: Checkpoint, settings: Settings) -> VisionSizes | None:
    """Return the sizes for images, or None for a text model."""
    if checkpoint.vision is None or checkpoint.images is None or settings.image_bytes == 0:
        return None
    config = checkpoint.vision.config
    row, largest = 4 * config.width, checkpoint.images.most_tokens
    rows = max(IMAGE_BYTES // row, 2 * largest) if settings.image_bytes is None else settings.image_bytes // row
    return VisionSizes(config, checkpoint.images.segments, rows)


def steering_programs(limits: EngineLimits, *, adapters: bool) -> list[Key]:
    """Return the programs for steered requests, without and with images, largest first.

    Args:
        adapters: whether the device has room for adapters.
    """
    steps = [bucket._replace(adapters=adapters, steered=True) for bucket in _largest_first(limits)]
    return [UNSTEERED, STEER, *steps, *_pictured(steps, limits)]


def _programs(
    config: ModelConfig,
    settings: Settings,
    limits: EngineLimits,
    forms: tuple[WeightForm, jnp.dtype],
    place: Place,
    vision: VisionSizes | None,
) -> Programs:
    """Return the programs, given the form of weights and the data type of pages."""
    (form, kv_dtype), (sizes, room) = forms, _sizes(limits)
    processor, kernels = settings.logits_processor, settings.implementation
    with _refusals():
        return Programs(config, sizes, form, place, kernels, processor, kv_dtype, room, vision)


def _shapes(
    config: ModelConfig,
    settings: Settings,
    limits: EngineLimits,
    forms: tuple[WeightForm, jnp.dtype],
    place: Place,
    vision: VisionSizes | None,
) -> ModelShapes:
    """Return the shapes of the programs of `_programs`."""
    (form, kv_dtype), (sizes, room) = forms, _sizes(limits)
    with _refusals(), JaxSettings.here().apply():
        return ModelShapes.of(config, sizes, form, place, settings.implementation, kv_dtype, room, vision)


def _sizes(limits: EngineLimits) -> tuple[Sizes, AdapterSizes]:
    pool, running = limits.pool, limits.max_running
    of_pool = pool.num_pages, pool.page_size, pool.pages_per_request
    sizes = Sizes(*of_pool, running, limits.max_logprobs, windows=running * limits.windows)
    return sizes, AdapterSizes(limits.adapter_slots, limits.max_adapter_rank)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise the ValueError of kernels without support for a model as ConfigError."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def serves(keys: Collection[Key]) -> bool:
    """Return True if a short request can be served with these programs."""
    shapes = [key for key in keys if isinstance(key, Bucket)]
    return EMPTY in keys and any(key.prefill_tokens for key in shapes) and any(key.decode_rows for key in shapes)
