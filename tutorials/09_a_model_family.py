# %% [markdown]
# # 09 · A model family
#
# `rekindle.open` knows some kinds of models and refuses all others. This notebook opens one that it refuses, and checks
# the result against the same model in numpy. [08_extend_it](08_extend_it.ipynb) changes what happens to requests. Here
# only the model is new.
#
# A Hugging Face directory says in `config.json` which architecture its model has. Many architectures are the same
# decoder under different names, or with one more part. Rekindle has one decoder. A **family** is data: it says which
# parts of the decoder a model has.

# %%
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import rekindle
from rekindle.core.models.config import HeadNorm
from rekindle.formats.families.reading import read_attention, read_llama, read_norm, with_windows
from rekindle.formats.families.registry import FAMILIES

print(", ".join(sorted(FAMILIES)))

# %% [markdown]
# ## A model that nobody knows
#
# Suppose there is an `EmberForCausalLM` that differs from a Llama in three ways. It has a bias for queries, keys and
# values, as Qwen2 has, and a norm for queries and keys, as Qwen3 has. And each position sees only a window of the last
# ones, as in Mistral. We make a tiny one with random weights.

# %%
VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD, WINDOW = 256, 64, 128, 2, 4, 2, 16, 12
chance = np.random.default_rng(0)


def random(*shape, around=0.0):
    return (around + 0.2 * chance.standard_normal(shape)).astype(np.float32)


weights = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "model.norm.weight": random(HIDDEN, around=1)}
for layer in range(LAYERS):
    at = f"model.layers.{layer}"
    weights |= {
        f"{at}.input_layernorm.weight": random(HIDDEN, around=1),
        f"{at}.self_attn.q_proj.weight": random(HEADS * HEAD, HIDDEN),
        f"{at}.self_attn.k_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
        f"{at}.self_attn.v_proj.weight": random(KV_HEADS * HEAD, HIDDEN),
        f"{at}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD),
        f"{at}.self_attn.q_proj.bias": random(HEADS * HEAD),
        f"{at}.self_attn.k_proj.bias": random(KV_HEADS * HEAD),
        f"{at}.self_attn.v_proj.bias": random(KV_HEADS * HEAD),
        f"{at}.self_attn.q_norm.weight": random(HEAD, around=1),
        f"{at}.self_attn.k_norm.weight": random(HEAD, around=1),
        f"{at}.post_attention_layernorm.weight": random(HIDDEN, around=1),
        f"{at}.mlp.gate_proj.weight": random(INNER, HIDDEN),
        f"{at}.mlp.up_proj.weight": random(INNER, HIDDEN),
        f"{at}.mlp.down_proj.weight": random(HIDDEN, INNER),
    }

CONFIG = {
    "architectures": ["EmberForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}
folder = tempfile.TemporaryDirectory()
ember = Path(folder.name) / "ember"
ember.mkdir()
with open(ember / "config.json", "w") as file:
    json.dump(CONFIG, file)
save_file(weights, ember / "model.safetensors")

# %% [markdown]
# `open` does not know this architecture, and does not guess:

# %%
try:
    await rekindle.open(ember, progress=False)
except rekindle.UnsupportedModel as error:
    print(str(error).replace(folder.name, "FOLDER"))
    refused = True
assert refused

# %% [markdown]
# ## A family of our own
#
# So we tell `open` how to read it. `read_llama` reads what a Llama has too, and we replace what differs. `keys` notes
# which keys of the file were read, so that none is passed over in silence.
#
# The model has no tokenizer, so its prompts are token ids. `prompt_logprobs=0` asks for the log-probability of each
# token of the prompt, which checks every position.

# %%
TINY = {
    "page_size": 16,
    "max_running": 1,
    "max_prefill_tokens": 64,
    "prefill_chunk": 64,
    "prefill_buckets": [64],
    "precompile": "lazy",  # each program at its first use
    "disk_cache_bytes": 0,
    "progress": False,
}
PROMPT = chance.integers(0, VOCABULARY, 40).tolist()


def read_ember(keys):
    attention = replace(read_attention(keys), qkv_bias=True, head_norm=HeadNorm(read_norm(keys)))
    model = read_llama(keys, attention=attention)
    return replace(model, layers=with_windows(keys, model.layers))


EMBER = rekindle.Family("EmberForCausalLM", read_ember)

session = await rekindle.open(ember, family=EMBER, **TINY)
answer = await session.generate(token_ids=PROMPT, max_tokens=12, temperature=0, logprobs=0, prompt_logprobs=0)
await session.close()
answer

# %% [markdown]
# ## Is it right?
#
# Random weights give no text that we could judge. So here is the same model once more, in numpy, as its authors might
# have published it: without a cache, without batches, and with every position computed each time.


# %%
def rms_norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def rotated(x):
    """Apply rotary positions to x (token, head, HEAD): each pair (i, i + HEAD / 2) turns with the position."""
    angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(x, at):
    def heads(name, count):
        return (x @ weights[f"{at}.{name}_proj.weight"].T + weights[f"{at}.{name}_proj.bias"]).reshape(-1, count, HEAD)

    q = rotated(rms_norm(heads("q", HEADS), weights[f"{at}.q_norm.weight"]))
    k = rotated(rms_norm(heads("k", KV_HEADS), weights[f"{at}.k_norm.weight"]))
    v = heads("v", KV_HEADS)
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))  # several query heads share each of them
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD)
    seen = np.tri(len(x), dtype=bool) & ~np.tri(len(x), k=-WINDOW, dtype=bool)  # neither later nor far back
    scores = np.where(seen, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(axis=-1, keepdims=True), v)
    return mixed.reshape(len(x), -1) @ weights[f"{at}.o_proj.weight"].T


def log_probabilities(tokens):
    """Return the log-probabilities of each next token: (token, VOCABULARY)."""
    x = weights["model.embed_tokens.weight"][tokens].astype(np.float64)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        x = x + attention(rms_norm(x, weights[f"{at}.input_layernorm.weight"]), f"{at}.self_attn")
        y = rms_norm(x, weights[f"{at}.post_attention_layernorm.weight"])
        gate, up = (y @ weights[f"{at}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
    logits = rms_norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


tokens = list(PROMPT)
for _ in range(12):
    tokens.append(int(log_probabilities(tokens)[-1].argmax()))
print("numpy    ", *tokens[len(PROMPT) :])
print("rekindle ", *answer.token_ids)

# %%
expected = log_probabilities(tokens)[np.arange(len(tokens) - 1), tokens[1:]]
scored = [each.logprob for each in (*answer.prompt_logprobs[1:], *answer.logprobs)]
print(f"largest difference of {len(scored)} log-probabilities: {np.abs(scored - expected).max():.1e}")

assert tuple(tokens[len(PROMPT) :]) == answer.token_ids
np.testing.assert_allclose(scored, expected, atol=1e-3)

# %% [markdown]
# ## What if the family is wrong?
#
# If it names another architecture than the model's, `open` refuses. (It also refuses any family for a GGUF file, which
# says itself how to read it.) If the family claims a part whose weights are not in the file, `open` says so. But if it
# leaves a part out, the file only has tensors that nobody asks for. Then the model runs and gives wrong numbers. A key
# of the config that is not read is refused or told, but a tensor is not. That is why the check above is worth it.


# %%
def without_norm(keys):
    model = read_ember(keys)
    without = replace(model.attentions[0], head_norm=None)
    return replace(model, layers=tuple(replace(layer, attention=without) for layer in model.layers))


wrong = await rekindle.open(ember, family=rekindle.Family("EmberForCausalLM", without_norm), **TINY)
other = await wrong.generate(token_ids=PROMPT, max_tokens=1, temperature=0, prompt_logprobs=0)
await wrong.close()
error = np.abs(np.array([each.logprob for each in other.prompt_logprobs[1:]]) - expected[: len(PROMPT) - 1]).max()
print(f"without the norm, the largest difference is {error:.1f}")
assert error > 0.1

# %%
for name in ("q_norm", "k_norm"):
    for layer in range(LAYERS):
        del weights[f"model.layers.{layer}.self_attn.{name}.weight"]
save_file(weights, ember / "model.safetensors")
try:
    await rekindle.open(ember, family=EMBER, **TINY)
except rekindle.CheckpointError as error:
    print(str(error).replace(folder.name, "FOLDER"))
    refused_again = True
assert refused_again
folder.cleanup()

# %% [markdown]
# What else a family can say is in `rekindle/core/models/config`: other norms, activations and ropes, caps,
# multipliers, parallel blocks, and other names of tensors. `rekindle/formats/families` has the families that are
# known, each about a screen long. A part that no family has yet belongs in `rekindle/core/models/layer.py`, and
# [02_one_token_at_a_time](02_one_token_at_a_time.ipynb) walks through the decoder that is there.
