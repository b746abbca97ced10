"""The class `LLM` of vLLM over a session."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.session.opening import open_sync
from rekindle.vllm import pooling
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
from rekindle.vllm.params import BeamSearchParams, LoRARequest, PoolingParams, SamplingParams
from rekindle.vllm.prompts import Job, conversations_in, each_of, illustrated, texts_or_tokens
from rekindle.vllm.running import Bar, Runner
from rekindle.vllm.searching import Search, search
from rekindle.vllm.table import check
from rekindle.vllm.tokenizer import LLMTokenizer

IN_FLIGHT: Final[Mapping[str, Any]] = {"abort": "fail", "wait": "finish", "keep": "keep"}
"""The fate of running requests at `sleep`, by vLLM's mode."""
RECOMMENDED: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Parameters with a default from the files of a model."""
Loras = LoRARequest | Sequence[LoRARequest | None] | None
Params = SamplingParams | Sequence[SamplingParams] | None


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
        generation_config: str = "auto",
        max_loras: int | None = None,
        max_lora_rank: int | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        **others: Any,
    ):
        check("LLM", others)
        if generation_config not in ("auto", "vllm"):
            raise InvalidRequest(f'generation_config must be "auto" or "vllm" here, got {preview(generation_config)}')
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
        self._runner = Runner(self.session, seed or 0)
        self._follows_model = generation_config == "auto"

    def __repr__(self) -> str:
        return f"LLM(model={self.session.name!r})"

    def close(self) -> None:
        """Close the session. Idempotent."""
        self.session.close_sync()

    def get_tokenizer(self) -> LLMTokenizer:
        """Return the tokenizer."""
        return LLMTokenizer(self.session)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of calls without any: vLLM's defaults, with those of the model's files."""
        own = self.session._loaded_engine.defaults if self._follows_model else {}
        return SamplingParams(**{name: own[name] for name in RECOMMENDED if name in own})

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate from each prompt, and return the results in order; see vLLM."""
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
        tokens = pooling.tokens_of(self.session, texts_or_tokens(prompts))
        adapters: list[LoRARequest | None] = each_of("lora_request", lora_request, len(tokens), None)
        priorities = each_of("priority", priority, len(tokens), 0)
        self._runner.load(adapters)
        ends = self.session._loaded_engine.preparer.eos_ids
        rows = zip(tokens, adapters, priorities, strict=True)
        searches = [Search(prompt, params, ends, adapter, place) for prompt, adapter, place in rows]
        together = len(searches) if concurrency_limit is None else concurrency_limit
        for first in range(0, len(searches), max(1, together)):
            group = searches[first : first + together]
            search(self.session, group, params.max_tokens, use_tqdm and concurrency_limit is None)
        return [each.result(self.session) for each in searches]

    def chat(
        self,
        messages: Sequence[Any],
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
        check("LLM.chat", {**speed, **others, **_present(chat_template=chat_template)})
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest("continue_final_message=True needs add_generation_prompt=False, as in vLLM")
        variables = dict(chat_template_kwargs or {})
        if not add_generation_prompt and not continue_final_message:
            variables["add_generation_prompt"] = False
        shared: dict[str, Any] = {
            "tools": tools,
            "chat_template_kwargs": variables or None,
            "continue_final_message": continue_final_message,
        }
        conversations = conversations_in(messages)
        texts = [self.session.render(each, **shared) for each in conversations]
        keywords = [shared] * len(texts)
        jobs = self._jobs(conversations, texts, keywords, sampling_params, lora_request, priority)
        return self._runner.run(jobs, use_tqdm)

    def encode(
        self,
        prompts: Any,
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the embedding or the classes of each prompt as an array, by `pooling_task`; see vLLM.

        Args:
            pooling_task: "embed" or "classify"; there is none for single tokens.
        """
        check("LLM.encode", _present(tokenization_kwargs=tokenization_kwargs))
        adapter, params = self._adapter(lora_request), pooling_params or PoolingParams()
        plain = texts_or_tokens(prompts)
        return pooling.encode(self.session, plain, params, adapter, pooling_task, progress=use_tqdm)

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of each prompt; see vLLM."""
        check("LLM.embed", _present(tokenization_kwargs=tokenization_kwargs))
        adapter, params = self._adapter(lora_request), pooling_params or PoolingParams()
        return pooling.embed(self.session, texts_or_tokens(prompts), params, adapter, progress=bool(use_tqdm))

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the probabilities of the classes for each prompt; see vLLM."""
        check("LLM.classify", _present(tokenization_kwargs=tokenization_kwargs))
        adapter, params = self._adapter(lora_request), pooling_params or PoolingParams()
        return pooling.classify(self.session, texts_or_tokens(prompts), params, adapter, progress=bool(use_tqdm))

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
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
        adapter, params = self._adapter(lora_request), pooling_params or PoolingParams()
        return pooling.score(self.session, data_1, data_2, params, adapter, progress=bool(use_tqdm))

    def sleep(self, level: int = 1, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Free the weights and the pages on the device until `wake_up`; both levels read the weights again then."""
        if level not in (1, 2) or mode not in IN_FLIGHT:
            raise InvalidRequest(
                f"level must be 1 or 2 here, and mode one of {', '.join(IN_FLIGHT)}; {level=}, {mode=}"
            )
        self.session.sleep_sync(in_flight=IN_FLIGHT[mode])

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Read the weights again, and return True."""
        if tags is not None:
            raise InvalidRequest("wake_up wakes all at once here: leave tags out")
        self.session.wake_sync()
        return True

    def _plain_jobs(
        self, prompts: Any, params: Params, loras: Loras, priority: int | Sequence[int] | None
    ) -> list[Job]:
        """Return the jobs of texts, with or without images, and of token ids."""
        keywords: list[dict[str, Any]] = []
        texts: list[str | None] = []
        for plain, images in illustrated(prompts):
            texts.append(plain if isinstance(plain, str) else None)
            keywords.append({} if isinstance(plain, str) else {"token_ids": plain})
            keywords[-1] |= {"images": images} if images else {}
        return self._jobs(texts, texts, keywords, params, loras, priority)

    def _jobs(
        self,
        prompts: Sequence[Any],
        texts: Sequence[str | None],
        keywords: Sequence[Mapping[str, Any]],
        params: Params,
        loras: Loras,
        priority: int | Sequence[int] | None,
    ) -> list[Job]:
        count = len(prompts)
        every = each_of("sampling_params", params, count, self.get_default_sampling_params())
        adapters: list[LoRARequest | None] = each_of("lora_request", loras, count, None)
        priorities = each_of("priority", priority, count, 0)
        rows = zip(prompts, texts, keywords, every, adapters, priorities, strict=True)
        return [Job(*row) for row in rows]

    def _adapter(self, lora: LoRARequest | None) -> str | None:
        """Return the name of an adapter, added first if need be."""
        self._runner.load([lora])
        return None if lora is None else lora.lora_name


def _present(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
