"""The settings of `open`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypedDict, get_args

from rekindle.core import buckets, markup
from rekindle.core.errors import ConfigError
from rekindle.core.policy import NAMED, Order
from rekindle.core.ray import Ray
from rekindle.core.route import ROUTES, Choose

Dtype = Literal["float32", "bfloat16"]
Implementation = Literal["xla", "reference", "cpu", "tpu", "gpu"]
Ticks = Literal["alternate", "prefill-first", "combined"]
Policy = Literal["fcfs", "longest-prefix", "dfs-weight", "longest-output", "random"] | Order
Route = Literal["prefix", "round-robin", "shortest-queue"] | Choose
Precompile = Literal["all", "background", "lazy"]
Restore = Literal["auto", "require", "off"]
SamplingDefaults = Literal["model", "neutral"]
AXES: Final = ("data", "tensor")
"""The axes of a mesh."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The keywords of `open`.

    Attributes:
        device: where weights, pages and programs are: a platform, as "gpu", one of its devices, as "gpu:1", or a
            `jax.Device`. None is `jax_default_device`, else JAX's first device.
        tensor: how many devices share the model, from `device` on. Each has some of the heads, the inner features and
            the vocabulary. None is one device if the model fits it with a pool of 1 GiB, or of one full request if that
            is less, or as it is asked for; else the fewest devices of this process, in a number that divides theirs,
            that it fits. It is always one on a CPU, and if `device` or `jax_default_device` names one device.
        data: how many groups of so many devices there are. Each group has the whole model, and pages and rows of its
            own: the sizes below are those of one group. All groups compute their ticks in step, and a request is given
            to the one that comes to it soonest.
        mesh: the devices, as a `jax.sharding.Mesh` of one's own, instead of `device`, `tensor` and `data`. Along its
            axis "tensor" are those that share the model, and along "data" the groups.
        replicas: how many lanes serve the session: engines in this process, each with devices, pages and rows of its
            own, behind one intake and one tokenizer. Lane 0 has the devices that the settings above say, and the others
            have the next ones; on a CPU without so many devices all have the same. The weights are read once. Unlike
            groups, lanes tick apart. The sizes below are those of one lane, but for `max_waiting` and the cache bytes.
            `rekindle.Ray(n)` has the lanes in processes of a Ray cluster.
        route: which lane gets a request: "prefix" is, of the lanes with a free slot, that with the fewest tokens to
            compute until the request's first one: those of the prompts that it was given, and the uncached of this;
            "round-robin" gives to each in turn; "shortest-queue" is the lane with the fewest requests that have not
            ended. A function takes a request, with its `prompt` and `params`, and a `rekindle.LaneLoad` for each lane;
            it returns the number of one, and is called on the engine's thread. If it fails, a RuntimeWarning says so
            once, and "prefix" goes on. Who begins with a prefix that is held goes to the lane that holds it, while that
            has a free slot.
        prefill: the devices that compute prompts, where others generate: one as `device` takes it, or a list of those
            that share the model. They are lane 0, which draws first tokens and keeps the prefixes of prompts; then the
            pages of a prompt move to lane 1, as far as they are not cached there. The default is that the same devices
            do both, in turns. It excludes `device`, `tensor`, `data`, `mesh` and `replicas`.
        decode: the devices that generate, where others compute prompts. They are lane 1.
        prefill_from: with these, how many uncached tokens of a prompt are too many to be computed by the devices that
            generate. It is a page at least.
        implementation: of the kernels: "xla" runs everywhere, "cpu", "tpu" and "gpu" are written for their platform,
            and "reference" is the slow definition of all of them. None is the best for the device.
        dtype: of weights and pages, "float32" or "bfloat16"; None is float32 on CPU and bfloat16 elsewhere.
        page_size: tokens per page, a multiple of 16.
        num_pages: pages in the pool, one of them for padding. None takes as many as `pool_bytes` holds.
        pool_bytes: memory for the pool of pages, instead of `num_pages`. None takes what weights and the largest step
            leave of the device's memory, at most what `max_running` full requests need; on a CPU, whose memory others
            use too, a quarter of that and at most 1 GiB. `session.memory` and `rekindle info` say how much it is.
        max_context: the most tokens of one request; None is the model's own.
        max_running: requests in the running batch.
        max_waiting: requests in the waiting queue; `generate` waits for room in it, `submit` raises `QueueFull`.
        max_prefill_tokens: prompt tokens computed in one tick, a multiple of 16.
        prefill_chunk: prompt tokens of one request computed in one tick, a multiple of 16.
        ticks: how prompts and decode rows share the device. "alternate" gives each ticks of their own, in turns as long
            as there are both, so that a running request waits for its next token no longer than one tick of prompts
            takes; `max_prefill_tokens` bounds that tick. "prefill-first" computes decode rows only while no prompt is
            left to compute: running requests get no token until all prompts that were admitted are computed.
            "combined" lets both share a tick, at the price of more programs.
        deterministic: give a request the same tokens whatever else runs, and whatever is cached. It excludes
            `prefill_buckets`, `decode_buckets`, `decode_steps` and ticks="combined". The native kernels for CPUs always
            do so, unless there is a `logits_processor`. Elsewhere each tick has one shape, the largest, so that a short
            prompt takes as long as `max_prefill_tokens`, and a step of one request as long as one of `max_running`. A
            request waits for pages for all its `max_tokens`, and only the pages of prompts are cached.
        policy: which request of the lowest `priority` leaves the waiting queue next: "fcfs" takes the first that came,
            "longest-prefix" the one with most tokens in the cache, "dfs-weight" those whose cached prefix most of the
            waiting share, one after the other, "longest-output" the one that may generate most, "random" any, by a hash
            that is the same in each run, and a function orders `rekindle.Candidate`s as a key of `sorted` does. The
            function is called on the engine's thread, when a slot is free, for the first 64 waiting requests. The first
            in its order that has no room yet holds up those behind it. If it raises an error, or its keys cannot be
            compared, a RuntimeWarning says so once, and the session goes on as with "fcfs". In any order, whoever has
            waited for 1,024 ticks goes next.
        prefix_cache: keep the pages of prompts and outputs, and use them for requests that begin the same.
        host_cache_bytes: host memory for pages that the device has no room for; 0 keeps none, on disk neither.
        disk_cache_bytes: room in the cache directory for pages of all models; 0 keeps none there.
        overlap: plan and dispatch the next tick before the tokens of the current one are read.
        precompile: "background" has `open` return as soon as a first request can be served, and compiles the programs
            of the other buckets meanwhile; "all" has it wait for all programs; "lazy" compiles each at its first use.
        restore: "auto" loads compiled programs and cached prefixes of earlier sessions from the cache directory, and
            saves new ones there; "require" refuses to open where a program would have to be compiled; "off" neither
            reads nor writes them.
        prefill_buckets: padded prompt tokens of a tick, ascending multiples of 16 that contain `max_prefill_tokens`.
        decode_buckets: padded decode rows of a tick, ascending, that contain `max_running`.
        max_executables: compiled programs that are kept; the least recently used is dropped first.
        max_logprobs: the most alternatives that `logprobs` and `prompt_logprobs` of a request may ask for.
        logits_processor: a function `(logits, row) -> logits` of the next token's logits, (vocabulary,) float32, and a
            `rekindle.LogitsRow`. It is traced once, here, and compiled into the step, so it computes with JAX alone.
            Its place is behind `allowed_token_ids` and before the temperature. It runs for every request whose
            `processor_args` are not None.
        sampling_defaults: "model" takes what the model's generation_config.json recommends for parameters that a call
            does not give; "neutral" takes the defaults of `SamplingParams`.
        watchdog_timeout: seconds that the device may take for one tick, without the time in which programs are compiled
            or loaded. If it takes longer, the requests that run fail with `StepTimeout`, those that wait do after as
            long again, and `session.stuck` says so; when the tick ends after all, the session serves on. None is 120 on
            GPUs and TPUs, where a tick takes milliseconds, and 1,800 on CPUs, where one of a large model can take
            minutes on a busy machine and devices do not hang; `math.inf` is no limit.
        decode_steps: how many tokens a running request gets in one tick, from 1 to 16, while nobody waits, no prompt is
            computed, and no request is constrained; the tokens are those of 1. Python then works once for so many
            tokens, which pays where a step takes less than about 3 ms; they come in bursts, a stop string or a
            cancelled request is noticed so much later, and a program more is compiled for each decode bucket.
    """

    device: Any = None
    tensor: int | None = None
    data: int = 1
    mesh: Any = None
    replicas: int | Ray = 1
    route: Route = "prefix"
    prefill: Any = None
    decode: Any = None
    prefill_from: int = 64
    implementation: Implementation | None = None
    dtype: Dtype | None = None
    page_size: int = 64
    num_pages: int | None = None
    pool_bytes: int | None = None
    max_context: int | None = None
    max_running: int = 32
    max_waiting: int = 256
    max_prefill_tokens: int = 512
    prefill_chunk: int = 512
    ticks: Ticks = "alternate"
    deterministic: bool = False
    policy: Policy = "fcfs"
    prefix_cache: bool = True
    host_cache_bytes: int = 1 << 30
    disk_cache_bytes: int = 4 << 30
    overlap: bool = True
    precompile: Precompile = "background"
    restore: Restore = "auto"
    prefill_buckets: Sequence[int] | None = None
    decode_buckets: Sequence[int] | None = None
    max_executables: int = 64
    max_logprobs: int = 20
    logits_processor: Callable[[Any, Any], Any] | None = None
    sampling_defaults: SamplingDefaults = "model"
    watchdog_timeout: float | None = None
    decode_steps: int = 1

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = [(field.name, _said(getattr(self, field.name))) for field in fields(self)]
        lines = (f"{name:{max(len(name) for name, _ in rows)}}  {value}" for name, value in rows)
        return markup.bundle("\n".join(lines), markup.card("Settings", "", markup.table(rows)))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print a line for each where this is the result of a cell, and the repr where it is in a list."""
        printer.text(repr(self) if printer.indentation else self._repr_mimebundle_()["text/plain"])

    def __post_init__(self) -> None:
        for name in ("page_size", "max_prefill_tokens", "prefill_chunk"):
            _integer(name, getattr(self, name), 1, multiple=buckets.QUERY_BLOCK)
        if self.tensor is not None:
            _integer("tensor", self.tensor, 1)
        _integer("data", self.data, 1)
        if not isinstance(self.replicas, Ray):
            _integer("replicas", self.replicas, 1, another=", or a rekindle.Ray")
        if not callable(self.route):
            _one_of("route", self.route, tuple(ROUTES), "or a function of a request and the lanes")
        _integer("prefill_from", self.prefill_from, 1)
        if self.mesh is not None:
            self._check_mesh()
        if self.prefill is not None or self.decode is not None:
            self._check_sets()
        for name in ("max_running", "max_waiting", "max_executables"):
            _integer(name, getattr(self, name), 1)
        for name in ("host_cache_bytes", "disk_cache_bytes", "max_logprobs"):
            _integer(name, getattr(self, name), 0)
        for name in ("num_pages", "pool_bytes", "max_context"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 2)
        if self.num_pages is not None and self.pool_bytes is not None:
            raise ConfigError("num_pages and pool_bytes both say how large the pool of pages is: give one of them")
        _one_of("implementation", self.implementation, (None, *get_args(Implementation)))
        _one_of("dtype", self.dtype, (None, *get_args(Dtype)))
        _one_of("ticks", self.ticks, get_args(Ticks))
        if not callable(self.policy):
            _one_of("policy", self.policy, tuple(NAMED), "or a function of a rekindle.Candidate")
        if self.logits_processor is not None and not callable(self.logits_processor):
            got = f"{self.logits_processor!r:.80}"
            raise ConfigError(f"logits_processor must be a function of logits and a rekindle.LogitsRow, got {got}")
        _one_of("deterministic", self.deterministic, (True, False))
        one_shape = not (self.prefill_buckets or self.decode_buckets or self.ticks == "combined")
        if self.deterministic and not (one_shape and self.decode_steps == 1):
            raise ConfigError(
                "deterministic=True gives every tick one shape: leave out prefill_buckets, decode_buckets, "
                'decode_steps and ticks="combined"'
            )
        _one_of("prefix_cache", self.prefix_cache, (True, False))
        _one_of("overlap", self.overlap, (True, False))
        _one_of("precompile", self.precompile, get_args(Precompile))
        _one_of("restore", self.restore, get_args(Restore))
        _one_of("sampling_defaults", self.sampling_defaults, get_args(SamplingDefaults))
        _integer("decode_steps", self.decode_steps, 1)
        if self.decode_steps > buckets.MAX_STEPS:
            raise ConfigError(f"decode_steps must be at most {buckets.MAX_STEPS}, got {self.decode_steps}")
        seconds = self.watchdog_timeout
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise ConfigError(
                f"watchdog_timeout must be a positive number of seconds, or math.inf, got {seconds!r:.80}"
            )

    @property
    def groups(self) -> int:
        """The number of groups of devices that compute different rows."""
        return self.data if self.mesh is None else int(self.mesh.shape.get("data", 1))

    @property
    def lane_count(self) -> int:
        """The number of lanes."""
        if self.prefill is not None:
            return 2
        return self.replicas.count if isinstance(self.replicas, Ray) else self.replicas

    def _check_sets(self) -> None:
        if self.prefill is None or self.decode is None:
            missing = "decode" if self.decode is None else "prefill"
            raise ConfigError(f"prefill and decode go together: give {missing} its devices too, or neither")
        beside = [name for name in ("device", "tensor", "mesh") if getattr(self, name) is not None]
        beside += [name for name in ("data", "replicas") if getattr(self, name) != 1]
        if beside:
            raise ConfigError(f"prefill and decode say which devices there are: leave out {beside[0]}")
        if not self.prefix_cache:
            raise ConfigError("the pages of prompts move through the prefix cache: leave out prefix_cache=False")

    def _check_mesh(self) -> None:
        beside = [name for name in ("device", "tensor") if getattr(self, name) is not None]
        beside += [name for name in ("data", "replicas") if getattr(self, name) != 1]
        if beside:
            raise ConfigError(f"mesh says which devices share the model, and in which order: leave out {beside[0]}")
        axes = getattr(self.mesh, "shape", None)
        if not isinstance(axes, Mapping):
            raise ConfigError(
                f'mesh must be a jax.sharding.Mesh with an axis "tensor", got {self.mesh!r:.80}; tensor=N takes the '
                "first N devices"
            )
        check_axes("mesh", {name: size for name, size in axes.items() if size > 1 or name in AXES})


def check_axes(what: str, axes: Mapping[str, int]) -> None:
    """Check the axes of a mesh by their names and sizes.

    Args:
        what: the name of what they were given as.

    Raises:
        ConfigError: an axis that nothing is shared over.
    """
    for name in axes:
        if name not in AXES:
            raise ConfigError(f"{what} has an axis {name!r}; known are {', '.join(AXES)}")


class SettingsOptions(TypedDict, total=False):
    """The keywords of `open`; `Settings` says what each does."""

    device: Any
    tensor: int | None
    data: int
    mesh: Any
    replicas: int | Ray
    route: Route
    prefill: Any
    decode: Any
    prefill_from: int
    implementation: Implementation | None
    dtype: Dtype | None
    page_size: int
    num_pages: int | None
    pool_bytes: int | None
    max_context: int | None
    max_running: int
    max_waiting: int
    max_prefill_tokens: int
    prefill_chunk: int
    ticks: Ticks
    deterministic: bool
    policy: Policy
    prefix_cache: bool
    host_cache_bytes: int
    disk_cache_bytes: int
    overlap: bool
    precompile: Precompile
    restore: Restore
    prefill_buckets: Sequence[int] | None
    decode_buckets: Sequence[int] | None
    max_executables: int
    max_logprobs: int
    logits_processor: Callable[[Any, Any], Any] | None
    sampling_defaults: SamplingDefaults
    watchdog_timeout: float | None
    decode_steps: int


def _said(value: Any) -> str:
    """Return the value of a setting as a cell shows it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    return getattr(value, "__name__", None) or repr(value)


def _integer(name: str, value: Any, low: int, multiple: int = 1, another: str = "") -> None:
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < low or value % multiple:
        what = f"a positive multiple of {multiple}" if multiple > 1 else f"an integer of at least {low}"
        raise ConfigError(f"{name} must be {what}{another}, got {value!r}")


def _one_of(name: str, value: Any, allowed: tuple[Any, ...], another: str = "") -> None:
    if value not in allowed:
        what = " ".join(filter(None, [", ".join(map(repr, allowed)), another]))
        raise ConfigError(f"{name} must be one of {what}, got {value!r}")
