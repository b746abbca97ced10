"""The rollout worker of tunix over a session; it needs the extra `rekindle-llm[tunix]`."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from tunix.generate.mappings import MappingConfig
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

from rekindle.core.concurrency.waits import blocked
from rekindle.core.errors import InvalidRequest
from rekindle.results.generation import Generation
from rekindle.scoring.computing import ScoredSequence, ScoringBar, score_all, scores_of
from rekindle.session.session import Session
from rekindle.session.tunix.arrays import TrainerArrays

ADAPTER: Final = "tunix"
"""The name of the trainer's LoRA adapter in the session."""
MOST_TOKENS: Final = 1 << 20
"""Largest number of tokens with log-probabilities kept between two updates."""
MOST_SEED: Final = 1 << 64


class RekindleRollout(BaseRollout):  # type: ignore[misc]  # tunix has no types, and is imported only here
    """Rollout worker of tunix that draws its answers from a session.

    Pass it to `ClusterConfig` with an open session: `rollout_engine=partial(RekindleRollout, session=session)`. The
    session has the model that is trained. It can be opened with `weights=None`, because the worker puts the trainer's
    weights into it at once. A trained LoRA adapter becomes the session's adapter "tunix", for these requests alone.

    Answers to equal prompts share the computation of the prompt. The tokens of an answer include its end token.

    Args:
        rollout_actor: the trainer's model, from tunix.
        tokenizer: the trainer's tokenizer with its adapter, from tunix.
        mesh: the devices of the rollout in tunix's plan; the session keeps its own.
        rollout_config: the configuration of training. Used are `max_tokens_to_generate`, `max_prompt_length`,
            `temperature`, `top_p`, `top_k`, `seed`, `eos_tokens`, `return_logprobs` and `rollout_mapping_config`; the
            settings of engines are those of the session.
        session: the open session.
        lora_alpha: the `alpha` of the trainer's LoRA adapter.

    Raises:
        InvalidRequest: the model has LoRA matrices, and `lora_alpha` is missing, or the session has no room for them.
        UnsupportedModel: the session's model is another one, or tunix has no table of names for the trainer's.
    """

    def __init__(
        self,
        rollout_actor: Any,
        tokenizer: Any,
        mesh: Any,
        rollout_config: RolloutConfig,
        *,
        session: Session,
        lora_alpha: float | None = None,
    ):
        from flax import nnx

        del mesh
        self._tokens, self._session, self._alpha = tokenizer, session, lora_alpha
        table = rollout_config.rollout_mapping_config
        mapping = MappingConfig.build(mapping_obj=table, model=rollout_actor, backend="vllm_jax")
        self._arrays = TrainerArrays(session._engine.facts.model, mapping)
        self._logprobs: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}
        self._adapter: str | None = None
        self.update_params(nnx.state(rollout_actor, nnx.Param))

    def generate(self, prompts: list[str], rollout_config: RolloutConfig, **kwargs: Any) -> RolloutOutput:
        """Generate one answer to each prompt.

        With `seed`, equal prompts still have different answers: their place in the list is part of the seed.

        Args:
            prompts: the texts, with the chat template applied.
            rollout_config: the configuration; see the class.
            **kwargs: further sampling parameters, as of `rekindle.SamplingParams`.

        Returns:
            Texts, tokens without padding, and prompts padded on the left to `max_prompt_length`, or to a power of two
            if one is longer. With `return_logprobs`, the log-probabilities of the tokens in the distribution that they
            were drawn from, after `temperature`, `top_p` and `top_k`. There are no logits.

        Raises:
            As `Session.generate`.
        """
        ids = [self._encode(prompt) for prompt in prompts]
        answers = self._draw(ids, rollout_config, kwargs)
        logprobs = [[token.logprob for token in answer.logprobs or ()] for answer in answers]
        self._keep([(answer.prompt_token_ids, answer.token_ids) for answer in answers], logprobs)
        return RolloutOutput(
            text=[answer.text for answer in answers],
            logits=None,
            tokens=[np.array(answer.token_ids, np.int32) for answer in answers],
            left_padded_prompt_tokens=self._padded(ids, rollout_config.max_prompt_length),
            logprobs=[np.array(each, np.float32) for each in logprobs] if rollout_config.return_logprobs else None,
        )

    def get_per_token_logps(self, prompt_tokens: jax.Array, completion_tokens: jax.Array) -> jax.Array:
        """Return the log-probabilities of answers by the policy that drew them.

        The latest million tokens since the last `update_params` have the log-probabilities of their drawing: after
        temperature, `top_p` and `top_k`. The session scores other answers, at temperature 1.

        Args:
            prompt_tokens: (answer, length) ids, padded on the left.
            completion_tokens: (answer, length) ids, padded on the right.

        Returns:
            (answer, length of completions) float32, with 0 for padding.
        """
        prompts, completions = np.asarray(prompt_tokens), np.asarray(completion_tokens)
        pairs = [
            (self._unpadded(prompt[::-1])[::-1], self._until_end(answer))
            for prompt, answer in zip(prompts, completions, strict=True)
        ]
        unknown = [pair for pair in dict.fromkeys(pairs) if pair not in self._logprobs and pair[1]]
        by_pair = self._logprobs | dict(zip(unknown, self._score(unknown), strict=True))
        logprobs = np.zeros(completions.shape, np.float32)
        for row, pair in zip(logprobs, pairs, strict=True):
            row[: len(pair[1])] = by_pair.get(pair, [])
        return jnp.asarray(logprobs)

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Put the trainer's parameters into the session, and wait until they are in use.

        Arrays already in the form of the session's weights are used without a copy, others are copied on their device;
        see `Session.update_weights`.

        Args:
            params: an `nnx.State` of the trainer's model: its parameters, its LoRA matrices, or both.
            filter_types: the types of variables in `params`; the names tell them already.

        Raises:
            As the class, and as `Session.update_weights`.
        """
        del filter_types
        self._logprobs.clear()
        with ExitStack() as guards:  # on CPUs, tunix forbids transfers here; views of its arrays are none
            guards.enter_context(jax.transfer_guard("allow"))
            tensors, adapter = self._arrays.tensors(params), self._arrays.adapter(params)
        if tensors:
            self._session.update_weights_sync(tensors, share=True)
        if adapter:
            self._put_adapter(adapter)

    def pad_id(self) -> int:
        """Return the id of the tokenizer's padding."""
        return int(self._tokens.pad_id())

    def eos_id(self) -> int:
        """Return the id of the tokenizer's end token."""
        return int(self._tokens.eos_id())

    def model(self) -> None:
        """Return None: the session's weights are no module of flax.

        By a module, tunix decides whether the rollout has the trainer's arrays themselves, and then never updates it.
        `offload_to_cpu` of `ClusterConfig` needs a module, and is not for this rollout.
        """

    def _keep(self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], logprobs: Sequence[list[float]]) -> None:
        """Keep the log-probabilities of answers to prompts, and drop the oldest above `MOST_TOKENS`."""
        self._logprobs |= dict(zip(pairs, logprobs, strict=True))
        excess = sum(map(len, self._logprobs.values())) - MOST_TOKENS
        while excess > 0:
            excess -= len(self._logprobs.pop(next(iter(self._logprobs))))

    def _put_adapter(self, tensors: dict[str, Any]) -> None:
        if self._alpha is None:
            raise InvalidRequest(
                "the trainer's model has LoRA matrices, and their scale is not among its arrays: pass the alpha of its "
                "LoraProvider, partial(RekindleRollout, session=session, lora_alpha=ALPHA)"
            )
        rank = max(array.shape[0] for name, array in tensors.items() if ".lora_A." in name)
        config = {"r": rank, "lora_alpha": self._alpha}
        self._session.add_adapter_sync(ADAPTER, tensors=tensors, config=config)
        self._adapter = ADAPTER

    def _draw(self, ids: Sequence[tuple[int, ...]], config: RolloutConfig, further: dict[str, Any]) -> list[Generation]:
        """Return the answers to all prompts. An error or an interrupt cancels the others."""
        options = {
            "max_tokens": config.max_tokens_to_generate,
            "temperature": float(config.temperature),
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "top_k": config.top_k if config.top_k is not None and config.top_k > 0 else 0,
            "stop_token_ids": list(config.eos_tokens or [self.eos_id()]),
            "logprobs": 0,
            "logprobs_of": "sampled",
            "adapter": self._adapter,
            **further,
        }
        first = _seed_of(config.seed)
        handles = []
        try:
            for row, prompt in enumerate(ids):
                seed = None if first is None else (first + row) % MOST_SEED
                handles.append(self._session.enqueue_sync(token_ids=prompt, seed=seed, **options))
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def _score(self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[float]]:
        """Return the log-probability of each token of answers that follow prompts."""
        sequences = [ScoredSequence((*prompt, *answer), len(prompt)) for prompt, answer in pairs]
        bar = ScoringBar("scoring", "answers", enabled=False)
        answers = blocked(score_all(self._session._requests, sequences, bar, adapter=self._adapter))
        return [[score.logprob for score in scores_of(answer)] for answer in answers]

    def _encode(self, prompt: str) -> tuple[int, ...]:
        """Return the tokens of a prompt, with one token for its beginning if the tokenizer has one, as tunix does."""
        beginning = self._tokens.bos_id()
        ids = [*([beginning] if beginning else []), *self._tokens.encode(prompt)]
        return tuple(int(each) for each in (self._tokens.dedup_bos_ids(ids)))

    def _padded(self, prompts: Sequence[tuple[int, ...]], length: int) -> np.ndarray[Any, Any]:
        longest = max(map(len, prompts))
        length = length if longest <= length else 1 << (longest - 1).bit_length()
        return np.array([[self.pad_id()] * (length - len(ids)) + [*ids] for ids in prompts], np.int32)

    def _unpadded(self, ids: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return ids without the padding at their end."""
        others = np.flatnonzero(ids != self.pad_id())
        return tuple(ids[: others[-1] + 1].tolist()) if len(others) else ()

    def _until_end(self, ids: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the ids of an answer without padding; the end token, which may be the padding too, belongs to it."""
        ends = np.flatnonzero(ids == self.eos_id())
        return tuple(ids[: ends[0] + 1].tolist()) if len(ends) else self._unpadded(ids)


def _seed_of(seed: Any) -> int | None:
    """Return the number of a seed: a number, or a key of JAX's random numbers."""
    if seed is None or isinstance(seed, int):
        return seed
    is_key = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
    words = np.asarray(jax.random.key_data(seed) if is_key else seed).reshape(-1)
    return sum(int(word) << (32 * place) for place, word in enumerate(words[::-1])) % MOST_SEED
