# %% [markdown]
# # 15 · Train an adapter
#
# In reinforcement learning, a model writes answers, each gets a **reward**, and training makes answers with a high
# reward likelier. Here, a session writes the answers (the *rollouts*), optax trains a **LoRA adapter** on them, and the
# session gets the new adapter in each round, without compiling anything. The reward is a number that can be computed:
# the share of digits in the answer. It builds on [the guide of adapters](guides/adapters.md).

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from IPython.display import HTML

import rekindle
from rekindle.assembly.training import adapt, token_logprobs
from rekindle.assembly.weights.load import load_decoder
from rekindle.formats.checkpoints.open import open_checkpoint

MODEL = "smollm2-135m-instruct"
PROMPTS = ["My favourite numbers are", "On my desk there are"]
SAMPLES, NEW_TOKENS, LENGTH, ROUNDS = 12, 8, 20, 12
session = await rekindle.open(
    MODEL,
    num_pages=60,
    page_size=16,
    max_context=128,
    max_running=24,
    max_prefill_tokens=32,
    prefill_chunk=32,
    prefill_buckets=[32],
    decode_buckets=[24],
    max_adapters=1,
    max_adapter_rank=4,
    progress=False,
)

# %% [markdown]
# ## The adapter
#
# An adapter adds `scale * B @ A` to the matrices of some projections: here to the queries and values of all layers. `A`
# is random and `B` is zero, so that the adapter changes nothing at first. The names are those of PEFT's files.

# %%
CONFIG = {"r": 4, "lora_alpha": 8}
checkpoint = open_checkpoint(MODEL)
chance = np.random.default_rng(0)
adapter = {}
for layer in range(len(checkpoint.config.layers)):
    for projection in ("q_proj", "v_proj"):
        name = f"model.layers.{layer}.self_attn.{projection}"
        outputs, inputs = checkpoint.tensors[f"{name}.weight"].shape
        adapter[f"{name}.lora_A.weight"] = jnp.asarray(chance.normal(0, inputs**-0.5, (4, inputs)), jnp.float32)
        adapter[f"{name}.lora_B.weight"] = jnp.zeros((outputs, 4))
await session.add_adapter("policy", tensors=adapter, config=CONFIG)
session.adapters

# %% [markdown]
# ## A decoder with derivatives
#
# The kernels of a session have no derivatives. `load_decoder` makes the same decoder from the same files in plain JAX;
# `adapt` adds the adapter to it, and `token_logprobs` computes the log-probability of each token of some sequences.

# %%
graph, weights = nnx.split(load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype("float32")))


def logprobs_of(adapter, tokens):
    """Return the log-probability of each token but the first, (sequence, length - 1)."""
    decoder = nnx.merge(graph, weights)
    return token_logprobs(decoder, tokens, adapt(decoder, adapter, CONFIG["lora_alpha"] / CONFIG["r"]))


def padded(answers):
    """Return the tokens of prompts and answers, and a mask of the tokens of the answers."""
    tokens, mask = np.zeros((len(answers), LENGTH), np.int32), np.zeros((len(answers), LENGTH - 1), np.float32)
    for row, answer in enumerate(answers):
        ids = [*answer.prompt_token_ids, *answer.token_ids]
        tokens[row, : len(ids)] = ids
        mask[row, len(answer.prompt_token_ids) - 1 : len(ids) - 1] = 1
    return jnp.asarray(tokens), jnp.asarray(mask)


# %% [markdown]
# The session says how likely each of its tokens was. The decoder must agree, or the derivatives would be those of
# another policy:

# %%
answer = await session.generate(PROMPTS[0], adapter="policy", max_tokens=NEW_TOKENS, temperature=0, logprobs=0)
tokens, mask = padded([answer])
ours = np.asarray(jax.jit(logprobs_of)(adapter, tokens))[0][np.asarray(mask[0], bool)]
theirs = np.array([token.logprob for token in answer.logprobs])
assert np.abs(ours - theirs).max() < 1e-2
float(np.abs(ours - theirs).max())

# %% [markdown]
# ## One step of training
#
# REINFORCE (Williams, 1992) raises the log-probability of each answer by its **advantage**: its reward, less the mean
# of all answers to the same prompt, by their deviation (as in GRPO, Shao et al., 2024).

# %%
optimizer = optax.adam(3e-3)
state = optimizer.init(adapter)


def loss(adapter, tokens, mask, advantages):
    """Return the negative mean of the log-probabilities, weighted by the advantages."""
    return -(logprobs_of(adapter, tokens) * mask * advantages[:, None]).sum() / mask.sum()


@jax.jit
def train(adapter, state, tokens, mask, advantages):
    """Return the adapter and the optimizer's state after one step."""
    updates, state = optimizer.update(jax.grad(loss)(adapter, tokens, mask, advantages), state)
    return optax.apply_updates(adapter, updates), state


def reward(text):
    """Return the share of digits among the characters of a text that are no spaces."""
    written = text.replace(" ", "")
    return sum(character.isdigit() for character in written) / max(1, len(written))


# %% [markdown]
# ## Rounds
#
# Each round draws answers with the newest adapter, trains one step, and replaces the adapter in the session.

# %%
SAMPLING = {"n": SAMPLES, "max_tokens": NEW_TOKENS, "temperature": 1.0, "ignore_eos": True}
rewards, examples = [], []
for number in range(ROUNDS):
    groups = await session.generate(PROMPTS, adapter="policy", seed=number, progress=False, **SAMPLING)
    answers = [answer for group in groups for answer in group]
    each = np.array([reward(answer.text) for answer in answers]).reshape(len(PROMPTS), SAMPLES)
    advantages = (each - each.mean(1, keepdims=True)) / (each.std(1, keepdims=True) + 1e-4)
    adapter, state = train(adapter, state, *padded(answers), jnp.asarray(advantages.reshape(-1), jnp.float32))
    await session.add_adapter("policy", tensors=adapter, config=CONFIG)
    rewards.append(float(each.mean()))
    examples.append(answers[0].text)
assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.3
assert session.stats.unexpected_compilations == 0

# %%
points = " ".join(f"{20 + 560 * place / (ROUNDS - 1):.0f},{180 - 160 * each:.0f}" for place, each in enumerate(rewards))
HTML(
    f'<svg width="600" height="200"><polyline points="{points}" fill="none" stroke="currentColor" stroke-width="2"/>'
    f'<text x="20" y="196" fill="currentColor">mean reward by round: {rewards[0]:.2f} to {rewards[-1]:.2f}</text></svg>'
)

# %%
for number in (0, ROUNDS // 2, ROUNDS - 1):
    print(f"round {number}, reward {rewards[number]:.2f}: {examples[number]!r}")

# %% [markdown]
# Requests without `adapter=` are answered by the model as it was, in the same batches:

# %%
(await session.generate(PROMPTS[0], max_tokens=NEW_TOKENS, temperature=0)).text

# %%
await session.close()

# %% [markdown]
# ## Try it
#
# - Answers of digits alone are seldom what somebody wants: the reward is all that training knows. Compute the
#   log-probabilities `base` of the same tokens without `adapt`, and add the mean of
#   `exp(base - ours) - (base - ours) - 1` to the loss, times 0.1. That keeps the answers closer to the model's own.
# - Reward words without the letter e instead of digits. What do the answers look like after 12 rounds, with the term
#   above and without?
