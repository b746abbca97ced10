"""The class `LLM` of vLLM over a session."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

from rekindle.core.cures import OfObjects
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.accepted import LogprobsOf
from rekindle.session.opening import open_sync
from rekindle.session.session import Session
from rekindle.vllm import pooling
from rekindle.vllm.defaults import default_params, generation_config_of
from rekindle.vllm.lora.adapters import LoadedAdapters
from rekindle.vllm.lora.request import LoRARequest
from rekindle.vllm.opening import settings_of, template_of
from rekindle.vllm.outputs import (
    BeamSearchOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from rekindle.vllm.prompts import ChatForm, Job, conversations_in, each_of, illustrated, texts_or_tokens
from rekindle.vllm.running import Bar, Runner
from rekindle.vllm.sampling_params import BeamSearchParams, PoolingParams, SamplingParams
from rekindle.vllm.searching import Search, search
from rekindle.vllm.table import ABSENT, check
from rekindle.vllm.tokenizer import LLMTokenizer

T = TypeVar("T", bound=PoolingRequestOutput[Any])

IN_FLIGHT: Final[Mapping[str, Any]] = {"abort": "fail", "wait": "finish", "keep": "keep"}
"""The fate of running requests at `sleep`, by vLLM's mode."""
LOGPROBS_OF: Final[Mapping[str, LogprobsOf]] = {"raw_logprobs": "model", "processed_logprobs": "sampled"}
"""The distribution of log-probabilities for each mode of vLLM."""
TAGS: Final = ("weights", "kv_cache", "scheduling")
"""The parts of a sleeping model in vLLM."""
Loras = LoRARequest | Sequence[LoRARequest | None] | None
Params = SamplingParams | Sequence[SamplingParams | None] | None
PoolingParameters = PoolingParams | Sequence[PoolingParams] | None


class LLM:
    """A model for calls that block, with vLLM's arguments, defaults and results.

    Args:
        model: the model, as in `rekindle.open`.
        Others: see vLLM and the guide "Coming from vLLM". An argument with an effect on speed alone gives a note; one
            without an equivalent raises InvalidRequest.

    Attributes:
        session: the session below, a `rekindle.Session`.
    """

    def __init__(
        self,
        model: str,
        *,
        runner: Literal["auto", "generate", "pooling"] = "auto",
        convert: str = "auto",
        tensor_parallel_size: int = 1,
        data_parallel_size: int = 1,
        dtype: Any = "auto",
        quantization: str | None = None,
        revision: str | None = None,
        chat_template: Path | str | None = None,
        seed: int = 0,
        kv_cache_memory_bytes: int | None = None,
        kv_cache_dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        enable_prefix_caching: bool | None = None,
        max_logprobs: int | None = None,
        logprobs_mode: str = "raw_logprobs",
        generation_config: Path | str = "auto",
        override_generation_config: Mapping[str, Any] | None = None,
        max_loras: int | None = None,
        max_lora_rank: int | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        **others: Any,
    ):
        check("LLM", others)
        generation_config_of(generation_config, {})  # before the model is read
        if logprobs_mode not in LOGPROBS_OF:
            raise InvalidRequest(f"logprobs_mode must be one of {', '.join(LOGPROBS_OF)} here, got {logprobs_mode!r}")
        if runner not in ("auto", "generate", "pooling") or convert not in ("auto", "none", "embed", "classify"):
            raise InvalidRequest(f"runner={runner!r}, convert={convert!r}: both follow the method that is called here")
        settings = settings_of(
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=tensor_parallel_size,
            data_parallel_size=data_parallel_size,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=enable_prefix_caching,
            max_logprobs=max_logprobs,
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            speculative_config=speculative_config,
        )
        self.session = open_sync(model, revision=revision, chat_template=template_of(chat_template), **settings)
        self._adapters, self._salt = LoadedAdapters(self.session), ""
        self._runner = Runner(self.session, seed or 0, self._adapters, _ends_without_reason(self.session))
        of_model = self.session._engine.facts.checkpoint.generation_config
        entries = generation_config_of(generation_config, of_model)
        self._logprobs_of = LOGPROBS_OF[logprobs_mode]
        self._defaults = default_params(entries, override_generation_config)

    def __repr__(self) -> str:
        return f"LLM(model={self.session.name!r})"

    @OfObjects
    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, with the equivalent of a member of vLLM."""
        remedy = f": {ABSENT[name]}" if name in ABSENT else ""
        raise AttributeError(f"LLM has no {name!r} here{remedy}", name=name, obj=None if remedy else self)

    def close(self) -> None:
        """Close the session. Idempotent."""
        self.session.close_sync()

    def get_tokenizer(self) -> LLMTokenizer:
        """Return the tokenizer."""
        return LLMTokenizer(self.session)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of calls without any: vLLM's defaults, with those of `generation_config`."""
        return self._defaults.clone()

    def generate(
        self,
        prompts: Any = None,
        sampling_params: Params = None,
        *,
        prompt_token_ids: Any = None,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate from each prompt, and return the results in order; see vLLM.

        Args:
            prompt_token_ids: the token ids of the prompts in place of `prompts`, as in earlier versions of vLLM.
        """
        if (prompts is None) == (prompt_token_ids is None):
            raise InvalidRequest("generate takes prompts, or prompt_token_ids in their place")
        prompts = prompt_token_ids if prompts is None else prompts
        check(
            "LLM.generate", _present(tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs)
        )
        return self._runner.run(self._plain_jobs(prompts, sampling_params, lora_request, priority), use_tqdm)

    def enqueue(
        self,
        prompts: Any,
        sampling_params: Params = None,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Bar = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Submit the prompts, and return their request ids; the computation begins at once. See vLLM."""
        others = _present(tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs)
        check("LLM.enqueue", {**others, **({} if use_tqdm is True else {"use_tqdm": use_tqdm})})
        return self._runner.enqueue(self._plain_jobs(prompts, sampling_params, lora_request, priority))

    def wait_for_completion(
        self, output_type: type[Any] | tuple[type[Any], ...] | None = None, *, use_tqdm: Bar = True
    ) -> list[RequestOutput]:
        """Return the results of all prompts of `enqueue` since the last call, in order; see vLLM.

        Raises:
            TypeError: `output_type` is another type than RequestOutput; the requests go on.
        """
        if output_type is not None and not issubclass(RequestOutput, output_type):
            raise TypeError(f"the results of enqueue are RequestOutput, not {output_type}")
        if self._runner.waits:
            self._check_awake()
        return self._runner.wait(use_tqdm)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[BeamSearchOutput]:
        """Search for the likeliest answers to each prompt, and return the results in order; see vLLM.

        Each step asks for `2 * beam_width` log-probabilities of each beam, so a width above 10 needs `max_logprobs` of
        `LLM`. The prefix cache has the tokens of a beam.

        Args:
            concurrency_limit: the largest number of prompts searched at once; no bar is drawn with it.
        """
        self._check_awake()
        tokens = pooling.tokens_of(self.session, texts_or_tokens(prompts))
        loras: list[LoRARequest | None] = each_of("lora_request", lora_request, LoRARequest, len(tokens), None)
        priorities = each_of("priority", priority, int, len(tokens), 0)
        ends = self.session._engine.facts.preparer.eos_ids
        rows = zip(tokens, loras, priorities, strict=True)
        searches = [Search(prompt, params, ends, adapter, place) for prompt, adapter, place in rows]
        together = len(searches) if concurrency_limit is None else concurrency_limit
        for first in range(0, len(searches), max(1, together)):
            group = searches[first : first + together]
            bar = use_tqdm and concurrency_limit is None
            search(self.session, group, params.max_tokens, self._adapters, self._salt, bar)
        return [each.result(self.session) for each in searches]

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of each conversation, and return the results in order; see vLLM."""
        speed = {} if chat_template_content_format == "auto" else {"chat_template_content_format": 1}
        others = _present(tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs)
        check("LLM.chat", {**speed, **others})
        form = ChatForm(chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self._runner.run(self._chat_jobs(messages, form, sampling_params, lora_request, priority), use_tqdm)

    def enqueue_chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Submit the conversations, and return their request ids; the computation begins at once. See vLLM."""
        speed = {} if chat_template_content_format == "auto" else {"chat_template_content_format": 1}
        others = _present(tokenization_kwargs=tokenization_kwargs, mm_processor_kwargs=mm_processor_kwargs)
        check("LLM.enqueue_chat", {**speed, **others, **({} if use_tqdm is True else {"use_tqdm": use_tqdm})})
        form = ChatForm(chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self._runner.enqueue(self._chat_jobs(messages, form, sampling_params, lora_request, priority))

    def encode(
        self,
        prompts: Any,
        pooling_params: PoolingParameters = None,
        *,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the embedding or the classes of each prompt as an array, by `pooling_task`; see vLLM.

        Args:
            pooling_task: "embed" or "classify"; there is none for single tokens.
        """
        check("LLM.encode", _present(tokenization_kwargs=tokenization_kwargs))
        task = partial(pooling.encode, task=pooling_task)
        return self._pooled(task, prompts, pooling_params, lora_request, use_tqdm)

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParameters = None,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of each prompt; see vLLM."""
        check("LLM.embed", _present(tokenization_kwargs=tokenization_kwargs))
        return self._pooled(pooling.embed, prompts, pooling_params, lora_request, use_tqdm)

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParameters = None,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the probabilities of the classes for each prompt; see vLLM."""
        check("LLM.classify", _present(tokenization_kwargs=tokenization_kwargs))
        return self._pooled(pooling.classify, prompts, pooling_params, lora_request, use_tqdm)

    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Return the similarity of each pair of texts; see vLLM."""
        check("LLM.score", _present(tokenization_kwargs=tokenization_kwargs, chat_template=chat_template))
        self._check_awake()
        (params,) = each_of("pooling_params", pooling_params, PoolingParams, 1, PoolingParams())
        (lora,) = each_of("lora_request", lora_request, LoRARequest, 1, None)
        return pooling.score(self.session, data_1, data_2, params, self._pooling_options(lora, use_tqdm))

    def sleep(self, level: int = 1, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Free the weights and the pages on the device until `wake_up`; both levels read the weights again then."""
        if level not in (1, 2) or mode not in IN_FLIGHT:
            raise InvalidRequest(
                f"level must be 1 or 2 here, and mode one of {', '.join(IN_FLIGHT)}; {level=}, {mode=}"
            )
        self.session.sleep_sync(in_flight=IN_FLIGHT[mode])

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Read the weights again, and return True. Everything wakes at once, by the first of the tags."""
        if unknown := [each for each in tags or () if each not in TAGS]:
            raise InvalidRequest(f"tags must be among {', '.join(TAGS)}, got {unknown[0]!r}")
        self.session.wake_sync()
        return True

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget the prefixes that earlier requests of this LLM have cached, and return True.

        Requests that run keep theirs. New weights by `session.update_weights` need no reset: they have their own pages.
        """
        others = {"reset_running_requests": reset_running_requests, "reset_connector": reset_connector}
        check("LLM.reset_prefix_cache", {name: value for name, value in others.items() if value})
        self._salt = uuid4().hex  # pages of another salt are never found, and leave as the least recently used
        return True

    def _check_awake(self) -> None:
        """Raise InvalidRequest for a sleeping model: the call would wait for a `wake_up` that nobody can call."""
        if self.session.asleep:
            raise InvalidRequest("the model sleeps: call llm.wake_up() before this method")

    def _pooled(
        self, task: Callable[..., list[T]], prompts: Any, params: PoolingParameters, loras: Loras, use_tqdm: Bar
    ) -> list[T]:
        """Return the results of a pooling task, computed together for prompts with the same parameters and adapter."""
        self._check_awake()
        plain = texts_or_tokens(prompts)
        every = each_of("pooling_params", params, PoolingParams, len(plain), PoolingParams())
        adapters: list[LoRARequest | None] = each_of("lora_request", loras, LoRARequest, len(plain), None)
        groups: dict[str, list[int]] = {}
        for place, pair in enumerate(zip(every, adapters, strict=True)):
            groups.setdefault(repr(pair), []).append(place)
        results: dict[int, T] = {}
        for places in groups.values():
            own, lora = every[places[0]], adapters[places[0]]
            options = self._pooling_options(lora, use_tqdm)
            outputs = task(self.session, [plain[place] for place in places], own, options=options)
            results |= zip(places, outputs, strict=True)
        for place, result in results.items():
            result.request_id = str(place)
        return [results[place] for place in range(len(plain))]

    def _pooling_options(self, lora: LoRARequest | None, use_tqdm: Bar) -> dict[str, Any]:
        return {"adapter": self._adapters.name_of(lora), "cache_salt": self._salt, "progress": bool(use_tqdm)}

    def _plain_jobs(
        self, prompts: Any, params: Params, loras: Loras, priority: int | Sequence[int] | None
    ) -> list[Job]:
        """Return the jobs of texts, with or without images, and of token ids."""
        pairs = illustrated(prompts)
        texts = [content if isinstance(content, str) else None for content, _ in pairs]
        keywords = [
            {
                **({} if isinstance(content, str) else {"token_ids": content}),
                **more,
                "cache_salt": self._salt + more.get("cache_salt", ""),
            }
            for content, more in pairs
        ]
        return self._jobs(texts, texts, keywords, params, loras, priority)

    def _chat_jobs(
        self, messages: Any, form: ChatForm, params: Params, loras: Loras, priority: int | Sequence[int] | None
    ) -> list[Job]:
        """Return the jobs of conversations."""
        conversations = conversations_in(messages)
        texts = [form.render(self.session, each) for each in conversations]
        prompts: list[Any] = texts if form.template is not None else conversations
        keywords = [{**form.keywords, "cache_salt": self._salt}] * len(texts)
        return self._jobs(prompts, texts, keywords, params, loras, priority)

    def _jobs(
        self,
        prompts: Sequence[Any],
        texts: Sequence[str | None],
        keywords: Sequence[Mapping[str, Any]],
        params: Params,
        loras: Loras,
        priority: int | Sequence[int] | None,
    ) -> list[Job]:
        self._check_awake()
        count = len(prompts)
        every = each_of("sampling_params", params, SamplingParams, count, self._defaults)
        adapters: list[LoRARequest | None] = each_of("lora_request", loras, LoRARequest, count, None)
        priorities = each_of("priority", priority, int, count, 0)
        options = {id(each): each.options for each in every}
        for own in options.values():
            own |= {"logprobs_of": self._logprobs_of} if own["logprobs"] is not None else {}
        rows = zip(prompts, texts, keywords, every, adapters, priorities, strict=True)
        return [
            Job(prompt, text, {**options[id(own)], **keyword}, own, lora, place)
            for prompt, text, keyword, own, lora, place in rows
        ]


def _ends_without_reason(session: Session) -> frozenset[int]:
    """Return the end token of the tokenizer; empty without one. In vLLM, a model's further ends are stop tokens."""
    own = None if session.tokenizer is None else LLMTokenizer(session).eos_token_id
    return frozenset() if own is None else frozenset({own})


def _present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
