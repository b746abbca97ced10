"""Answers of tunix come from a session, which computes like the trainer's model after each update."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
from flax import nnx
from transformers import PreTrainedTokenizerFast
from tunix.generate.mappings import MappingConfig
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params as qwen2_params
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import common
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

import rekindle
from rekindle.session.tunix import rollout as module
from rekindle.session.tunix.arrays import arrays_of
from rekindle.session.tunix.rollout import RekindleRollout
from tests.sentence_models import END, embedding_model, write

SMALL: dict[str, Any] = {
    "page_size": 16,
    "max_context": 64,
    "max_running": 8,
    "max_prefill_tokens": 32,
    "prefill_buckets": (32,),
    "decode_buckets": (8,),
    "precompile": "lazy",
    "dtype": "float32",
    "progress": False,
}
SIZES: dict[str, Any] = {
    "num_layers": 3,
    "vocab_size": 512,
    "embed_dim": 64,
    "hidden_dim": 160,
    "num_heads": 4,
    "num_kv_heads": 2,
    "rope_theta": 1_000_000,  # tunix 0.1.7 has no other one in Llama 3 and Qwen 3, whatever their settings say
    "norm_eps": 1e-6,
}
TINY: dict[str, Any] = {
    "num_layers": 2,
    "vocab_size": 512,
    "embed_dim": 32,
    "hidden_dim": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "rope_theta": 1_000_000,
    "norm_eps": 1e-6,
    "use_tied_embedding": True,
}
PAD = 257
PROMPT = "Some numbers: "


@pytest.fixture(autouse=True)
def jax_of_users() -> Iterator[None]:
    """Set JAX's own rules of promotion, which tunix needs."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def trainer_of(family: str, directory: Path) -> Any:
    """Return tunix's model of a tiny checkpoint, read by tunix."""
    if family == "llama-tied":
        config: Any = llama3.ModelConfig(**SIZES, head_dim=16, weight_tying=True)
        return llama3_params.create_model_from_safe_tensors(str(directory), config)
    if family == "qwen2":
        config = qwen2.ModelConfig(**SIZES, head_dim=16)
        return qwen2_params.create_model_from_safe_tensors(str(directory), config)
    config = qwen3.ModelConfig(**SIZES, head_dim=32)
    return qwen3_params.create_model_from_safe_tensors(str(directory), config)


def logps_of(model: nnx.Module, prompts: Any, answers: Any, temperature: float = 1.0) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of answers by tunix's own model."""
    graph, state = nnx.split(model)
    logps = common.compute_per_token_logps(
        graph, state, jnp.asarray(prompts), jnp.asarray(answers), PAD, END, temperature=temperature
    )
    return np.asarray(logps)


@pytest.fixture(scope="module")
def model(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny generative model with bytes in its tokenizer."""
    return embedding_model(families / "qwen3-embed", tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def tokens(model: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), eos_token="<end>", pad_token="<pad>")


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[rekindle.Session]:
    """Open the tiny model without its weights, in the portable kernels' form."""
    with rekindle.open_sync(model, weights=None, implementation="xla", max_adapters=1, **SMALL) as tiny:
        yield tiny


@pytest.fixture
def actor() -> qwen3.Qwen3:
    return qwen3.Qwen3(qwen3.ModelConfig(**TINY), rngs=nnx.Rngs(0))


@pytest.fixture
def rollout(actor: qwen3.Qwen3, tokens: PreTrainedTokenizerFast, session: rekindle.Session) -> RekindleRollout:
    return RekindleRollout(actor, TokenizerAdapter(tokens), None, RolloutConfig(), session=session)


@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3"])
def test_a_session_with_the_trainers_arrays_computes_as_the_trainer(
    families: Path, family: str, tokens: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    directory = shutil.copytree(families / family, tmp_path / family)
    config = json.loads((directory / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = SIZES["rope_theta"]
    write(directory / "config.json", config)
    trainer = trainer_of(family, directory)
    chance = np.random.default_rng(0)
    prompts, answers = chance.integers(3, 256, (3, 9)), chance.integers(3, 256, (3, 6))
    prompts[0, :4], answers[1, 4:] = PAD, PAD
    with rekindle.open_sync(directory, weights=None, **SMALL) as session:
        worker = RekindleRollout(trainer, TokenizerAdapter(tokens), None, RolloutConfig(), session=session)
        logps = np.asarray(worker.get_per_token_logps(jnp.asarray(prompts), jnp.asarray(answers)))
    assert logps == pytest.approx(np.where(answers == PAD, 0, logps_of(trainer, prompts, answers)), abs=2e-3)
    assert not logps[1, 4:].any()


def test_answers_come_with_the_log_probabilities_of_their_drawing(
    rollout: RekindleRollout, actor: qwen3.Qwen3, session: rekindle.Session
) -> None:
    config = RolloutConfig(
        max_tokens_to_generate=8, temperature=0.7, max_prompt_length=20, seed=jax.random.key(3), return_logprobs=True
    )
    output = rollout.generate([PROMPT] * 4 + ["x"], config)
    assert output.left_padded_prompt_tokens.shape == (5, 20)
    assert output.left_padded_prompt_tokens[4].tolist() == [PAD] * 18 + [*session.encode("x"), END]
    assert len({tuple(answer) for answer in output.tokens[:4]}) > 1
    texts = [session.decode(answer) for answer in output.tokens]  # half a character at the end is no text
    assert all(whole.startswith(text) for whole, text in zip(texts, output.text, strict=True))
    answers = np.array([[*answer, *[PAD] * (8 - len(answer))] for answer in output.tokens])
    expected = logps_of(actor, output.left_padded_prompt_tokens, answers, 0.7)
    logps = np.asarray(rollout.get_per_token_logps(jnp.asarray(output.left_padded_prompt_tokens), jnp.asarray(answers)))
    for row, answer, own in zip(range(5), output.tokens, output.logprobs, strict=True):
        assert own == pytest.approx(expected[row, : len(answer)], abs=2e-3)
        assert logps[row, : len(answer)] == pytest.approx(own)
    again = rollout.generate([PROMPT] * 4 + ["x"], config)
    assert [answer.tolist() for answer in again.tokens] == [answer.tolist() for answer in output.tokens]
    assert rollout.generate([PROMPT], RolloutConfig()).logprobs is None


def test_long_prompts_are_padded_to_a_power_of_two_and_further_parameters_reach_the_session(
    rollout: RekindleRollout,
) -> None:
    config = RolloutConfig(max_tokens_to_generate=2, max_prompt_length=4, temperature=0.0, top_k=-1, top_p=None)
    output = rollout.generate(["abcdefghi", "a"], config, allowed_token_ids=[5, 6])
    assert output.left_padded_prompt_tokens.shape == (2, 16)
    assert {int(token) for answer in output.tokens for token in answer} <= {5, 6}
    with pytest.raises(rekindle.InvalidRequest, match="temprature"):
        rollout.generate(["a"], config, temprature=1)


def test_the_log_probabilities_of_old_answers_make_room_for_new_ones(
    rollout: RekindleRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 10)
    config = RolloutConfig(max_tokens_to_generate=4, temperature=0.5)
    outputs = [rollout.generate([text], config) for text in ("a", "b", "c")]
    rows = [
        rollout.get_per_token_logps(jnp.asarray(each.left_padded_prompt_tokens), jnp.asarray([each.tokens[0]]))
        for each in outputs
    ]
    rollout._logprobs.clear()
    scores = [
        rollout.get_per_token_logps(jnp.asarray(each.left_padded_prompt_tokens), jnp.asarray([each.tokens[0]]))
        for each in outputs
    ]
    same = [bool(np.allclose(row, score, atol=1e-3)) for row, score in zip(rows, scores, strict=True)]
    assert same == [True, False, False]  # the first is scored, at temperature 1


def test_arrays_in_the_form_of_the_session_are_not_copied(
    rollout: RekindleRollout, actor: qwen3.Qwen3, session: rekindle.Session
) -> None:
    state = nnx.state(actor, nnx.Param)
    rollout.update_params(state, (nnx.Param,))
    stepper: Any = session._engine.facts.lanes[0].actors.stepper
    places = {array.unsafe_buffer_pointer() for array in stepper._state.weights}
    own = {name for name, array in arrays_of(state) if array.unsafe_buffer_pointer() in places}
    norms = {name for name, array in arrays_of(state) if array.ndim == 1}
    assert own == {"embedder.input_embedding", *norms}


def test_a_lora_adapter_of_the_trainer_is_one_of_the_session(
    actor: qwen3.Qwen3, tokens: PreTrainedTokenizerFast, session: rekindle.Session
) -> None:
    provider = qwix.LoraProvider(module_path=".*(q_proj|v_proj|o_proj|gate_proj|down_proj)", rank=4, alpha=8.0)
    trainer = qwix.apply_lora_to_model(actor, provider, **actor.get_model_input())
    state = nnx.state(trainer, nnx.LoRAParam)
    chance = np.random.default_rng(1)
    changed = jax.tree.map(lambda array: jnp.asarray(chance.normal(0, 0.2, array.shape), array.dtype), state)
    with pytest.raises(rekindle.InvalidRequest, match="pass the alpha of its LoraProvider"):
        RekindleRollout(trainer, TokenizerAdapter(tokens), None, RolloutConfig(), session=session)
    worker = RekindleRollout(trainer, TokenizerAdapter(tokens), None, RolloutConfig(), session=session, lora_alpha=8.0)
    version = session.weights_version
    prompts, answers = (jnp.asarray(chance.integers(3, 256, (2, length))) for length in (9, 6))
    plain = np.asarray(worker.get_per_token_logps(prompts, answers))
    nnx.update(trainer, changed)
    worker.update_params(changed, (nnx.LoRAParam,))
    logps = np.asarray(worker.get_per_token_logps(prompts, answers))
    assert session.weights_version == version
    assert np.abs(logps - plain).max() > 0.1
    assert logps == pytest.approx(logps_of(trainer, prompts, answers), abs=2e-3)


def test_another_model_or_an_unknown_parameter_is_told(
    families: Path, tokens: PreTrainedTokenizerFast, session: rekindle.Session, actor: qwen3.Qwen3
) -> None:
    other = trainer_of("qwen3", families / "qwen3")
    with pytest.raises(rekindle.UnsupportedModel, match="open the model that the trainer trains"):
        RekindleRollout(other, TokenizerAdapter(tokens), None, RolloutConfig(), session=session)
    table = MappingConfig(to_hf_mappings={"embedder.input_embedding": ("model.embed_tokens.weight", ())})
    config = RolloutConfig(rollout_mapping_config=table)
    with pytest.raises(rekindle.UnsupportedModel, match=r"no final_norm\.w: give RolloutConfig"):
        RekindleRollout(actor, TokenizerAdapter(tokens), None, config, session=session)


def digits(prompts: Any, completions: list[str], **_: Any) -> list[float]:
    """Return the share of letters before "n" in each completion."""
    return [sum("a" <= each < "n" for each in text) / 8 for text in completions]


def test_grpo_trains_with_answers_of_a_session(
    actor: qwen3.Qwen3, tokens: PreTrainedTokenizerFast, session: rekindle.Session
) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    training = RLTrainingConfig(
        actor_optimizer=optax.adam(1e-2),
        max_steps=4,
        eval_every_n_steps=100,
        mini_batch_size=2,
        train_micro_batch_size=2,
    )
    cluster = RLCluster(
        actor=actor,
        tokenizer=tokens,
        cluster_config=ClusterConfig(
            role_to_mesh={Role.ACTOR: mesh, Role.ROLLOUT: mesh, Role.REFERENCE: mesh},
            rollout_engine=partial(RekindleRollout, session=session),
            training_config=training,
            rollout_config=RolloutConfig(max_tokens_to_generate=8, max_prompt_length=16, temperature=1.0),
        ),
    )
    version = session.weights_version
    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=4, num_iterations=2, beta=0.0),
        reward_fns=digits,
    )
    data = grain.MapDataset.source([PROMPT, "Letters: "] * 4).batch(2).map(lambda batch: {"prompts": batch})
    learner.train(data)
    assert session.weights_version == version + 2  # each step has two updates
    prompts, answers = jnp.full((1, 9), 70), jnp.full((1, 6), 80)
    logps = np.asarray(cluster.rollout.get_per_token_logps(prompts, answers))
    assert logps == pytest.approx(logps_of(cluster.actor_trainer.model, prompts, answers), abs=2e-3)
