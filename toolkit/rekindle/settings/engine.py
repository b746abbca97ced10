"""Settings of `open`."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final, Literal, TypedDict, get_args

from rekindle.core import buckets
from rekindle.core.errors import ConfigError
from rekindle.core.keywords import hinted
from rekindle.core.policy import POLICIES, DraftSource, Policy, Ticks
from rekindle.core.words import bytes_in
from rekindle.settings.route import ROUTES, Route

Dtype = Literal["float32", "bfloat16", "float16"]
KvDtype = Literal["float32", "bfloat16", "float16", "int8"]
Implementation = Literal["xla", "reference", "cpu", "tpu", "gpu"]
Precompile = Literal["all", "background", "lazy"]
Restore = Literal["auto", "require", "off"]
SamplingDefaults = Literal["model", "neutral"]
WeightsChoice = Literal["auto", "packed", "dequantized"]
Activations = Literal["int16", "int8", "bfloat16", "float16", "exact"]
Quantize = Literal["int8", "int4"]
DEFAULT_CHUNK: Final = 512
AXES: Final = ("data", "tensor")
"""Axis names of a device mesh."""


class RemoteReplicas:
    """Replicas in other processes, such as `rekindle.Ray(2)`.

    Attributes:
        count: number of replicas.
    """

    __slots__ = ()
    count: int


@hinted
@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an engine: the keywords of `open`.

    Attributes:
        device: platform or device for weights, pages and programs: a platform such as "gpu", one of its devices such
            as "gpu:1", or a `jax.Device`. None takes `jax_default_device`, else JAX's first device.
        tensor: number of devices in a tensor-parallel group, from `device` on. Each holds a shard of the attention
            heads, of the feed-forward features and of the vocabulary. None takes one device if the model fits with its
            page pool: the configured one, else 1 GiB or one full request, if that is smaller. Otherwise it takes the
            fewest devices of this process that fit the model; the number divides the count of devices. On a CPU, and
            if `device` or `jax_default_device` names one device, None always means 1.
        data: number of data-parallel groups of `tensor` devices. Default 1. Each group has the whole model and its own
            pages and rows, so the sizes below are per group. All groups run their ticks in step. A request goes to the
            group that can start it soonest.
        mesh: a `jax.sharding.Mesh` to use in place of `device`, `tensor` and `data`. Axis "tensor" shards the model;
            axis "data" has the groups.
        replicas: number of lanes: engines in this process behind one intake and one tokenizer, each with its own
            devices, pages and rows. Default 1. Lane 0 has the devices of the settings above and the other lanes have
            the devices after it; on a CPU without enough devices, all lanes share. The weights are read once. Unlike
            groups, lanes tick independently. The sizes below are per lane, except `max_waiting` and the cache bytes.
            `rekindle.Ray(n)` runs the lanes in processes of a Ray cluster.
        route: policy for choosing the lane of a request. "prefix" (default) takes a lane with a free slot and the
            fewest tokens to compute before the first token of the request: prompt tokens assigned to the lane already,
            plus the uncached tokens of this prompt. "round-robin" takes the lanes in turn. "shortest-queue" takes the
            lane with the fewest unfinished requests. A function takes the request, with `prompt` and `params`, and one
            `rekindle.LaneLoad` per lane, and returns a lane number. A lane with a stuck tick is left out while another
            serves. It runs on the engine's thread; if it fails, a
            RuntimeWarning is given once and "prefix" takes over. A request that begins with a prefix held by
            `session.prefix` goes to the lane that holds it, as long as the lane has a free slot.
        prefill: devices that compute prompts while others generate: one device, as for `device`, or a list of devices
            that share the model. They form lane 0, which samples first tokens and caches the prefixes of prompts. The
            pages of a prompt then move to lane 1, except pages cached there already. None (default) computes prompts
            and generates on the same devices, in turns. Excludes `device`, `tensor`, `data`, `mesh` and `replicas`, and
            models whose layers keep a state.
        decode: devices that generate, when `prefill` names the devices that compute prompts. They form lane 1.
        prefill_from: smallest number of uncached prompt tokens sent to the `prefill` devices; shorter prompts are
            computed by the `decode` devices. Default 64, and at least one page.
        implementation: kernels to use. "xla" runs everywhere; "cpu", "tpu" and "gpu" are written for their platform;
            "reference" is the slow definition of the results of all kernels. None takes the best for the device.
        dtype: data type of weights that are not packed, "float32", "bfloat16" or "float16". None is float32 on CPUs,
            float16 on GPUs before compute capability 8.0, like the T4, bfloat16 elsewhere. Sums, the residual stream,
            norms and logits are float32 always. CPUs have no native kernels for float16.
        weights: form of the weights in memory. "packed" keeps the quantized blocks of a file, such as Q4_K of a GGUF
            file or FP8, where the kernels support them: on TPUs and GPUs, codes with a scale for at least 128 numbers.
            "dequantized" converts all numbers to `dtype`. "auto" (default) keeps the blocks of GGUF files with the
            native kernels of CPUs: a fourth of the memory or less, and faster than float32. None reads no weights, only
            their shapes: the session compiles its programs and refuses requests with NoWeights, until `update_weights`
            has given all tensors.
        quantize: codes made from the matrices of a file as they are read, "int8" or "int4": a half or a quarter of the
            memory of bfloat16. Embedding and head have 8 bits and a scale per row, other matrices a scale per 128
            numbers. Routers and vectors keep their numbers. Files that are quantized already are refused, unless
            `weights="dequantized"` converts them first. `update_weights` quantizes new weights, too. None (default)
            quantizes nothing.
        activations: numbers multiplied with packed or quantized weights: integers by token and group of 32, "int16" or
            "int8", which is less exact and faster for many tokens; "bfloat16" or "float16", as of weights converted
            to it; or float32 with "exact", which is slow. None is "int16" on CPUs, and FP8 has float32 there in place
            of integers. Elsewhere it is `dtype`, or "exact" for float32, and there are no integers.
        mmproj: file with the vision tower of a model in a GGUF file: a path, or `owner/name/file.gguf` on the hub. None
            (default) takes a file beside the model, such as mmproj-MODEL-f16.gguf, if there is one.
        kv_dtype: data type of keys and values in pages: "float32", "bfloat16", "float16" or "int8". None is `dtype`.
            "int8" has a scale for each 64 numbers of a head, so it holds 1.8 to 3.8 times the positions in the same
            memory, and a position is rounded alike whatever is computed with it. Excludes models with latent attention.
        page_size: tokens per page, a multiple of 16. Default 64.
        num_pages: number of pages in the pool, including one for padding. None fits the pool to `pool_bytes`.
        pool_bytes: bytes of memory for the page pool, or a text such as "2GB" or "1.5GiB"; an alternative to
            `num_pages`. None takes the device memory
            remaining after weights and the largest step, and at most the demand of `max_running` full requests. On a
            CPU, where other programs need memory too, None takes a quarter of that and at most 1 GiB.
            `session.memory` and `rekindle info` show the size.
        max_context: largest number of tokens in one request, prompt and output together. None is the model's own limit.
        max_running: largest number of requests in the running batch. Default 32.
        max_waiting: largest number of requests in the waiting queue. Default 256. When the queue is full, `generate`
            waits and `submit` raises `QueueFull`. Only requests of the same `priority` and more urgent ones count: an
            urgent request enters at once. With many priorities, up to eight times as many requests wait in the queue.
        max_prefill_tokens: largest number of prompt tokens computed in one tick, a multiple of 16. Default 512, or
            2,048 for an encoder.
        prefill_chunk: largest number of prompt tokens of one request computed in one tick, a multiple of 16. Default
            512.
        ticks: schedule by which prompts and decode rows share the device. "alternate" (default) alternates between
            ticks of prompts and ticks of decode rows while there are both. A running request then waits for its next
            token no longer than one prompt tick, which `max_prefill_tokens` bounds. "prefill-first" computes decode
            rows only when no admitted prompt is left to compute. "combined" computes both in one tick, at the price of
            more programs.
        deterministic: give a request the same tokens whatever other requests run and whatever is cached. Default
            False. Excludes `prefill_buckets`, `decode_buckets` and ticks="combined". Native CPU kernels are
            deterministic anyway, except with a `logits_processor`. Elsewhere each tick has one shape, the largest:
            a short prompt takes as long as `max_prefill_tokens`, and a step of one request as long as one of
            `max_running`. A request waits for pages for all of its `max_tokens`, and only pages of prompts are cached.
        policy: order in which requests of the same `priority` leave the waiting queue. "fcfs" (default) is the order
            of arrival. "longest-prefix" starts with the most cached tokens, "longest-output" with the most tokens still
            to generate. "dfs-weight" runs requests with a common cached prefix one after the other, beginning with the
            prefix of the most requests. "random" orders by a hash, the same in each run. A function orders
            `rekindle.Candidate`s as a key of `sorted` does. It is called on the engine's thread when a slot is free,
            with the first 64 requests of the queue. If it raises, or its keys cannot be compared, a RuntimeWarning is
            given once and "fcfs" takes over. Under any policy, the first request without enough free pages blocks the
            requests behind it, and a request that has waited for 1,024 ticks goes next.
        prefix_cache: cache the pages of prompts and outputs, and reuse them for requests with the same beginning.
            Default True.
        image_bytes: bytes of device memory for embeddings of images, in a model that reads images. Default 64 MiB, or
            the room for two of the largest images of the model if that is more. 0 makes no room and no programs for
            images.
        host_cache_bytes: bytes of host memory for pages evicted from the device. Default 1 GiB. 0 disables the host
            tier, and with it the disk tier.
        disk_cache_bytes: bytes in the cache directory for pages of all models. Default 4 GiB. 0 disables the disk tier.
        weight_cache_bytes: bytes in the cache directory for weights of all models as converted for a device. The next
            session reads them instead of converting the model's files again. Default 32 GiB, and at most half of what
            is free on the disk. They are kept on accelerators, and on CPUs if they are packed or quantized. 0 keeps
            none.
        overlap: plan and dispatch the next tick before the tokens of the current one are read. Default True.
        precompile: programs to compile before `open` returns. "background" (default) compiles enough to serve a first
            request, and the programs of the other buckets meanwhile; "all" compiles all programs; "lazy" compiles each
            program at its first use.
        restore: use of the cache directory. "auto" (default) loads compiled programs and cached prefixes of earlier
            sessions, and saves new ones. "require" fails to open if a program is not stored. "off" neither reads nor
            writes.
        prefill_buckets: padded numbers of prompt tokens per tick: ascending multiples of 16, including
            `max_prefill_tokens`. None chooses them.
        decode_buckets: padded numbers of decode rows per tick, ascending, including `max_running`. None chooses them.
        max_executables: largest number of compiled programs in memory; the least recently used is dropped first.
            Default 64.
        max_logprobs: largest number of alternatives per token for `logprobs` and `prompt_logprobs`. Default 20.
        logits_processor: function `(logits, row) -> logits` of the next token's logits, (vocabulary,) float32, and a
            `rekindle.LogitsRow`. It is traced once, in `open`, and compiled into the step, so it must compute with JAX
            alone. It runs after `allowed_token_ids` and before the temperature, for each request whose
            `processor_args` are not None. None (default) runs none.
        sampling_defaults: source of the defaults of sampling parameters: "model" (default), the generation_config.json
            of the model, or "neutral", the defaults of `SamplingParams`.
        watchdog_timeout: largest time of one tick on the device, or of other work there, in seconds, excluding the time
            to compile or load programs. When it expires, running requests fail with `StepTimeout`, waiting requests
            fail after another such period, and `session.stuck` describes the work. If it ends after all, the session
            resumes. None is 120 on GPUs and TPUs, where a tick takes milliseconds, and 1,800 on CPUs, where a tick of a
            large model can take minutes on a busy machine. `math.inf` disables the watchdog.
        decode_steps: largest number of tokens generated per running request in one tick, from 1 to 16 (default). Python
            runs once for all of them. The session measures steps, and takes as many as need 10 ms together; on a CPU up
            to 4 in 40 ms for a request alone. It takes one while a request waits, a prompt is computed, or a request is
            constrained or has drafts. The tokens do not change. They come at the end of their tick, and stop strings
            and cancellations take effect there.
        max_adapters: largest number of adapters at a time; a replaced or removed adapter does not count, even while
            requests still use it. None (default) is 4, or the number of `adapters` given to `open` if that is larger.
            With a number, or with `adapters`, their memory is set aside and their programs are prepared in `open`;
            otherwise both happen when the first adapter is added. `session.memory` shows the size.
        max_adapter_rank: largest rank of an adapter. None (default) is 16, or the largest rank of `adapters`.
        draft: source of drafts: guesses of several next tokens, verified in one tick. "lookup" repeats the tokens after
            the same tokens earlier in the request, or in a finished output of the same `cache_salt` and adapter. "mtp"
            asks the draft head of the model for one token; its files must bring one (DeepSeek-V3, GLM-4.5 to 4.7,
            Qwen3-Next, Qwen3.5).
            Answers equal those of single steps, except as for batches (see `deterministic`). The session measures
            ticks, and drafts where drafts are faster. None (default) drafts for requests with `draft="lookup"` alone.
    """

    device: Any = None
    tensor: int | None = None
    data: int = 1
    mesh: Any = None
    replicas: int | RemoteReplicas = 1
    route: Route = "prefix"
    prefill: Any = None
    decode: Any = None
    prefill_from: int = 64
    implementation: Implementation | None = None
    dtype: Dtype | None = None
    weights: WeightsChoice | None = "auto"
    quantize: Quantize | None = None
    activations: Activations | None = None
    mmproj: str | None = None
    kv_dtype: KvDtype | None = None
    page_size: int = 64
    num_pages: int | None = None
    pool_bytes: int | None = None
    max_context: int | None = None
    max_running: int = 32
    max_waiting: int = 256
    max_prefill_tokens: int = 512
    prefill_chunk: int = DEFAULT_CHUNK
    ticks: Ticks = "alternate"
    deterministic: bool = False
    policy: Policy = "fcfs"
    prefix_cache: bool = True
    image_bytes: int | None = None
    host_cache_bytes: int = 1 << 30
    disk_cache_bytes: int = 4 << 30
    weight_cache_bytes: int = 32 << 30
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
    decode_steps: int = buckets.MAX_STEPS
    max_adapters: int | None = None
    max_adapter_rank: int | None = None
    draft: DraftSource | None = None

    def __post_init__(self) -> None:
        for name in ("pool_bytes", "image_bytes", "host_cache_bytes", "disk_cache_bytes", "weight_cache_bytes"):
            value: Any = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, _bytes(name, value))
        if isinstance(self.mmproj, PathLike):
            object.__setattr__(self, "mmproj", fspath(self.mmproj))
        self._check_sizes()
        self._check_choices()
        self._check_weights()
        if self.mesh is not None:
            self._check_mesh()
        if self.prefill is not None or self.decode is not None:
            self._check_sets()
        if self.logits_processor is not None and not callable(self.logits_processor):
            got = f"{self.logits_processor!r:.80}"
            raise ConfigError(f"logits_processor must be a function of logits and a rekindle.LogitsRow, got {got}")
        one_shape = not (self.prefill_buckets or self.decode_buckets or self.ticks == "combined")
        if self.deterministic and not one_shape:
            raise ConfigError(
                "deterministic=True gives every tick one shape: leave out prefill_buckets, decode_buckets and "
                'ticks="combined"'
            )

    @property
    def groups(self) -> int:
        """Number of data-parallel groups; groups compute different rows."""
        return self.data if self.mesh is None else int(self.mesh.shape.get("data", 1))

    @property
    def lane_count(self) -> int:
        """Number of lanes."""
        if self.prefill is not None:
            return 2
        return self.replicas if isinstance(self.replicas, int) else self.replicas.count

    def _check_sizes(self) -> None:
        for name in ("page_size", "max_prefill_tokens", "prefill_chunk"):
            _integer(name, getattr(self, name), 1, multiple=buckets.QUERY_BLOCK)
        if not isinstance(self.replicas, RemoteReplicas):
            _integer("replicas", self.replicas, 1, another=", or a rekindle.Ray")
        for name in ("data", "prefill_from", "max_running", "max_waiting", "max_executables", "decode_steps"):
            _integer(name, getattr(self, name), 1)
        for name in ("image_bytes", "host_cache_bytes", "disk_cache_bytes", "weight_cache_bytes", "max_logprobs"):
            if name != "image_bytes" or self.image_bytes is not None:
                _integer(name, getattr(self, name), 0)
        for name in ("num_pages", "pool_bytes", "max_context"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 2)
        for name in ("tensor", "max_adapters", "max_adapter_rank"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1)
        if self.prefill_chunk != DEFAULT_CHUNK and self.prefill_chunk > self.max_prefill_tokens:
            raise ConfigError(
                f"prefill_chunk is {self.prefill_chunk}, and max_prefill_tokens leaves room for "
                f"{self.max_prefill_tokens} tokens in a tick: raise max_prefill_tokens, or leave out prefill_chunk"
            )
        if self.num_pages is not None and self.pool_bytes is not None:
            raise ConfigError("num_pages and pool_bytes both say how large the pool of pages is: give one of them")
        if self.decode_steps > buckets.MAX_STEPS:
            raise ConfigError(f"decode_steps must be at most {buckets.MAX_STEPS}, got {self.decode_steps}")
        seconds = self.watchdog_timeout
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise ConfigError(
                f"watchdog_timeout must be a positive number of seconds, or math.inf, got {seconds!r:.80}"
            )

    def _check_choices(self) -> None:
        if self.device == "":
            raise ConfigError('device must name a platform, such as "gpu" or "gpu:1", and is empty: leave it out')
        if not callable(self.route):
            _one_of("route", self.route, tuple(ROUTES), "or a function of a request and the lanes")
        if not callable(self.policy):
            _one_of("policy", self.policy, tuple(POLICIES), "or a function of a rekindle.Candidate")
        _one_of("implementation", self.implementation, (None, *get_args(Implementation)))
        _one_of("dtype", self.dtype, (None, *get_args(Dtype)))
        _one_of("kv_dtype", self.kv_dtype, (None, *get_args(KvDtype)))
        _one_of("ticks", self.ticks, get_args(Ticks))
        _one_of("precompile", self.precompile, get_args(Precompile))
        _one_of("restore", self.restore, get_args(Restore))
        _one_of("sampling_defaults", self.sampling_defaults, get_args(SamplingDefaults))
        for name in ("deterministic", "prefix_cache", "overlap"):
            _one_of(name, getattr(self, name), (True, False))

    def _check_weights(self) -> None:
        _one_of("weights", self.weights, (*get_args(WeightsChoice), None), "(update_weights takes others)")
        _one_of("quantize", self.quantize, (None, *get_args(Quantize)))
        _one_of("draft", self.draft, (None, *get_args(DraftSource)))
        _one_of("activations", self.activations, (None, *get_args(Activations)))
        if self.mmproj is not None and not isinstance(self.mmproj, str):
            raise ConfigError(f"mmproj must be a path of a GGUF file, got {self.mmproj!r:.80}")
        if self.quantize is not None and self.weights == "packed":
            raise ConfigError(
                'weights="packed" keeps the blocks of a file, and quantize= makes others: give one of them'
            )

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
        what: the subject of the error message.

    Raises:
        ConfigError: an axis other than those of `AXES`.
    """
    for name in axes:
        if name not in AXES:
            raise ConfigError(f"{what} has an axis {name!r}; known are {', '.join(AXES)}")


class SettingsOptions(TypedDict, total=False):
    """Keywords of `open`, as documented in `Settings`."""

    device: Any
    tensor: int | None
    data: int
    mesh: Any
    replicas: int | RemoteReplicas
    route: Route
    prefill: Any
    decode: Any
    prefill_from: int
    implementation: Implementation | None
    dtype: Dtype | None
    weights: WeightsChoice | None
    quantize: Quantize | None
    activations: Activations | None
    mmproj: str | PathLike[str] | None
    kv_dtype: KvDtype | None
    page_size: int
    num_pages: int | None
    pool_bytes: int | str | None
    max_context: int | None
    max_running: int
    max_waiting: int
    max_prefill_tokens: int
    prefill_chunk: int
    ticks: Ticks
    deterministic: bool
    policy: Policy
    prefix_cache: bool
    image_bytes: int | str | None
    host_cache_bytes: int | str
    disk_cache_bytes: int | str
    weight_cache_bytes: int | str
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
    max_adapters: int | None
    max_adapter_rank: int | None
    draft: DraftSource | None


def _integer(name: str, value: Any, low: int, multiple: int = 1, another: str = "") -> None:
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < low or value % multiple:
        what = f"a positive multiple of {multiple}" if multiple > 1 else f"an integer of at least {low}"
        raise ConfigError(f"{name} must be {what}{another}, got {value!r}")


def _bytes(name: str, text: str) -> int:
    size = bytes_in(text)
    if size is None:
        raise ConfigError(f'{name} must be a number of bytes, or a size such as "500MB" or "1.5GiB", got {text!r:.80}')
    return size


def _one_of(name: str, value: Any, allowed: tuple[Any, ...], another: str = "") -> None:
    if value not in allowed:
        what = " ".join(filter(None, [", ".join(map(repr, allowed)), another]))
        close = _near(value, allowed)
        hint = f"; did you mean {close!r}?" if close else ""
        raise ConfigError(f"{name} must be one of {what}, got {value!r:.80}{hint}")


_ALIKE: Final = {
    "float16": ("f16", "fp16", "half"),
    "bfloat16": ("16", "bf16"),
    "float32": ("32", "double", "f32", "float", "float64", "fp32", "full"),
    "int4": ("4", "4bit", "4-bit", "awq", "fp4", "gptq", "mxfp4", "nf4", "nvfp4", "q4"),
    "int8": ("8", "8bit", "8-bit", "float8", "fp8", "q8"),
    "gpu": ("cuda", "triton"),
}
"""Values of other libraries, by the nearest value of Rekindle."""


def _near(value: Any, allowed: Sequence[Any]) -> str:
    """Return the allowed text nearest to a value, such as a dtype of numpy or torch; "" if no text is near."""
    text = str(getattr(value, "__name__", value)).rpartition(".")[2].lower()
    for ours, theirs in _ALIKE.items():
        is_kind = text.startswith(("q4_", "q8_", "float8_")) and text.partition("_")[0] in theirs
        if ours in allowed and (text == ours or text in theirs or is_kind):
            return ours
    close = difflib.get_close_matches(text, [each for each in allowed if isinstance(each, str)], n=1)
    return close[0] if close else ""
