# %% [markdown]
# # 18 · Train with tunix
#
# [tunix](https://github.com/google/tunix) is Google's library for the training of language models after pretraining, in
# JAX. Its learners (GRPO, PPO and others) take answers from a *rollout worker*. Here, the worker is a session: it
# draws the answers, and gets the trainer's weights after each step, without a compilation. The task is a toy: a tiny
# model with random weights learns to answer with digits. The trainer of [tutorial 15](15_train_an_adapter.ipynb) is one
# function that you can read; tunix has the same for large models on many devices.
#
# tunix is no part of Rekindle: `pip install "rekindle-llm[tunix]"`.

# %%
import json
import tempfile
from functools import partial
from pathlib import Path

from IPython.display import HTML
from IPython.utils.capture import capture_output

import rekindle

with capture_output():  # tunix and its libraries warn as they are imported
    import grain
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from tunix.models.qwen3.model import ModelConfig
    from tunix.models.qwen3.params import create_model_from_safe_tensors
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
    from tunix.rl.rollout.base_rollout import RolloutConfig

    from rekindle.session.tunix.rollout import RekindleRollout

# %% [markdown]
# ## A checkpoint for both
#
# tunix and Rekindle read the same checkpoints. This one is a Qwen 3 of two layers, whose tokens are characters.

# %%
MODEL = Path(tempfile.mkdtemp())
WIDTH, INNER, HEADS, KV_HEADS, HEAD, LAYERS = 64, 128, 4, 2, 16, 2
vocabulary = {
    token: number for number, token in enumerate([*"abcdefghijklmnopqrstuvwxyz0123456789 ", "<end>", "<pad>"])
}

backend = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
backend.decoder = decoders.Fuse()
backend.add_special_tokens(["<end>", "<pad>"])
backend.save(str(MODEL / "tokenizer.json"))
(MODEL / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))

settings = {
    "model_type": "qwen3",
    "vocab_size": len(vocabulary),
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
    "eos_token_id": vocabulary["<end>"],
}
(MODEL / "config.json").write_text(json.dumps(settings))

layer = {
    "self_attn.q_proj": (HEADS * HEAD, WIDTH),
    "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "self_attn.q_norm": (HEAD,),
    "self_attn.k_norm": (HEAD,),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
}
shapes = {"model.embed_tokens": (len(vocabulary), WIDTH), "model.norm": (WIDTH,)}
shapes |= {f"model.layers.{place}.{name}": shape for place in range(LAYERS) for name, shape in layer.items()}
chance = np.random.default_rng(0)
tensors = {
    f"{name}.weight": np.ones(shape) if len(shape) == 1 else chance.normal(0, shape[1] ** -0.5, shape)
    for name, shape in shapes.items()
}
save_file({name: array.astype(np.float32) for name, array in tensors.items()}, MODEL / "model.safetensors")

# %% [markdown]
# The session is opened without weights: it compiles its programs, and waits for the trainer's.

# %%
session = await rekindle.open(
    MODEL,
    weights=None,
    page_size=16,
    max_context=64,
    max_running=32,
    max_prefill_tokens=32,
    prefill_buckets=[32],
    decode_buckets=[32],
    progress=False,
)
session

# %% [markdown]
# ## tunix, with the session as its worker
#
# `rollout_engine` is the class of the worker, with the session filled in. Everything else is tunix: the model that is
# trained, the optimizer, the numbers of a step. Each of 30 steps has 4 prompts with 8 answers each.

# %%
sizes = ModelConfig(
    num_layers=LAYERS,
    vocab_size=len(vocabulary),
    embed_dim=WIDTH,
    hidden_dim=INNER,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD,
    rope_theta=1_000_000,
    norm_eps=1e-6,
    use_tied_embedding=True,
)
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
with capture_output():  # tunix logs
    cluster = RLCluster(
        actor=create_model_from_safe_tensors(str(MODEL), sizes),
        tokenizer=PreTrainedTokenizerFast(
            tokenizer_file=str(MODEL / "tokenizer.json"), eos_token="<end>", pad_token="<pad>"
        ),
        cluster_config=ClusterConfig(
            role_to_mesh={Role.ACTOR: mesh, Role.ROLLOUT: mesh, Role.REFERENCE: mesh},
            rollout_engine=partial(RekindleRollout, session=session),
            training_config=RLTrainingConfig(
                actor_optimizer=optax.adam(3e-3),
                max_steps=30,
                eval_every_n_steps=1_000,
                mini_batch_size=4,
                train_micro_batch_size=4,
            ),
            rollout_config=RolloutConfig(max_tokens_to_generate=8, max_prompt_length=16, temperature=1.0),
        ),
    )

# %% [markdown]
# The session has the trainer's weights now. It must compute the same log-probabilities as the trainer's model, or the
# gradients would be those of another policy:

# %%
prompts = jnp.array([cluster.tokenizer.encode("she counted ")])
answers = jnp.array([cluster.tokenizer.encode("12 birds")])
pad, end = cluster.rollout.pad_id(), cluster.rollout.eos_id()
ours = cluster.rollout.get_per_token_logps(prompts, answers)
theirs = cluster.get_actor_per_token_logps(prompts, answers, pad, end)
assert np.abs(ours - theirs).max() < 1e-3
session.weights_version, np.round(np.asarray(ours), 2)

# %% [markdown]
# ## Training
#
# The reward is the share of digits in the answer.

# %%
rewards, examples = [], []


def reward(prompts, completions, **_):
    """Return the share of digits in each answer."""
    shares = [sum(character.isdigit() for character in text) / 8 for text in completions]
    rewards.append(float(np.mean(shares)))
    examples.append(completions[0])
    return shares


learner = GRPOLearner(
    rl_cluster=cluster,
    algo_config=GRPOConfig(num_generations=8, num_iterations=1, beta=0.0),
    reward_fns=reward,
)
texts = ["my numbers are ", "on my desk are ", "she counted ", "he wrote "]
with capture_output():  # tunix draws its bars
    learner.train(grain.MapDataset.source(texts * 30).batch(4).map(lambda batch: {"prompts": batch}))

# %%
assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3
assert session.stats.unexpected_compilations == 0
points = " ".join(f"{20 + 560 * place / 29:.0f},{180 - 160 * each:.0f}" for place, each in enumerate(rewards))
HTML(
    f'<svg width="600" height="200"><polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/>'
    f'<text x="20" y="196" fill="currentColor">mean reward by step: {rewards[0]:.2f} to {rewards[-1]:.2f}</text></svg>'
)

# %%
for number in (0, 10, 29):
    print(f"step {number}, reward {rewards[number]:.2f}: {examples[number]!r}")

# %% [markdown]
# The session was updated after each step, and computes as the trained model does:

# %%
ours = cluster.rollout.get_per_token_logps(prompts, answers)
theirs = cluster.get_actor_per_token_logps(prompts, answers, pad, end)
assert np.abs(ours - theirs).max() < 1e-3
session.weights_version

# %% [markdown]
# It is a session like any other: it answers, in any number of requests at once.

# %%
[answer.text for answer in await session.generate(texts, max_tokens=8, temperature=0, progress=False)]

# %%
await session.close()

# %% [markdown]
# ## Try it
#
# - With `num_iterations=2`, GRPO trains twice on the same answers, and needs their log-probabilities by the old
#   weights. The worker has them from the drawing. How does the curve change?
# - Train a LoRA adapter alone: wrap the model in `qwix.apply_lora_to_model` with `qwix.LoraProvider`, open the session
#   with `max_adapters=1`, and give the worker the provider's `lora_alpha`. Then `session.adapters` has "tunix".
