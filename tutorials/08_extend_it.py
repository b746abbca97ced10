# %% [markdown]
# # 08 · Extend it
#
# You may want to change who goes first, what an actor does, or which models can be opened. For each of these,
# `rekindle.open` takes an argument, and a few lines of Python are enough: a **policy**, an **actor**, a **family**.

# %%
import json
import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
from safetensors.numpy import save_file

import rekindle
from rekindle.messages import Outputs, Stopped
from rekindle.models.families import FAMILIES, Family
from rekindle.views.records import Begun

SETTINGS = {
    "max_running": 2,  # two requests run at once, the others wait
    "max_prefill_tokens": 128,  # a tick computes at most so many prompt tokens
    "prefill_chunk": 128,
    "prefill_buckets": [128],
    "decode_buckets": [2],
    "max_context": 1024,
    "disk_cache_bytes": 0,  # no pages of earlier runs: every session here starts with an empty prefix cache
    "progress": False,
}

# %% [markdown]
# ## A policy: who goes first
#
# If more requests come than can run, they wait in a queue. When a slot is free, the scheduler asks the policy who gets
# it. The default is `fcfs`, first come, first served. `longest-prefix` takes the request that has most of its prompt in
# the prefix cache.
#
# A policy of your own is a **sort key**: a function of a `rekindle.policy.Candidate`. The lowest key goes first, and
# among equal keys the request that came first. A candidate has the `request` (with its `prompt` as token ids),
# `cached_tokens` (the tokens that need not be computed), and `started` (whether the request ran before and lost its
# pages to others).
#
# Under `fcfs`, a short request that comes after a long document waits until the document is read. Let us take the
# request with the least left to compute first:


# %%
def shortest_first(candidate):
    left = len(candidate.request.prompt) - candidate.cached_tokens
    return (not candidate.started, left)


# %% [markdown]
# `not candidate.started` puts the requests first that lost their pages. These pages are still in the prefix cache. But
# the longer such a request waits, the more of its pages are evicted and have to be computed again.
#
# Now one request runs, and eight more come: three with a document, five without. All are submitted while the session is
# paused, so that nothing depends on how fast this cell is.


# %%
def document(place, days):
    return " ".join(f"{place}, day {day}: the keeper counted {3 * day % 7 + 2} ships." for day in range(1, days + 1))


RUNNING = "Once upon a time"
COMING = [
    document("North", 36) + " The keeper",
    "One, two, three,",
    document("East", 28) + " The ships",
    "The sky is blue and the grass is",
    document("South", 20) + " On day 21",
    "Paris is the capital of",
    "Monday, Tuesday,",
    "Water boils at",
]


async def run(policy):
    """Run all requests under a policy; return the answers of those that came, the trace, and the compilations."""
    async with rekindle.open("smollm2-135m-instruct", policy=policy, **SETTINGS) as session:
        await session.precompiled(progress=False)
        await session.pause()
        with session.trace() as trace:
            handles = [session.submit(prompt, max_tokens=6, temperature=0) for prompt in [RUNNING, *COMING]]
            session.resume()
            answers = [await handle for handle in handles]
        return answers[1:], trace, session.stats.compilations


answers, trace, _ = await run("fcfs")
trace.timeline()

# %% [markdown]
# Each row is a request, and each column is a tick. Request 0 is the one that runs first. Now we run the same with our
# policy:

# %%
own_answers, own_trace, compiled = await run(shortest_first)
own_trace.timeline()

# %% [markdown]
# The short requests no longer wait for the documents. The next cell prints how long each waited for its first token, in
# ticks and in seconds:


# %%
def first_tokens(trace):
    """Return the tick that gave each request its first token."""
    ticks = {}
    for seen in trace.handled:
        if seen.kind == "Settled":
            for request in seen.requests:
                ticks.setdefault(request, seen.tick)
    return [ticks[request] for request in range(1, len(COMING) + 1)]


first, own_first = first_tokens(trace), first_tokens(own_trace)
print(f"{'prompt':>12} {'fcfs':>18} {'shortest first':>18}")
for answer, tick, own_answer, own_tick in zip(answers, first, own_answers, own_first, strict=True):
    seconds, own_seconds = answer.timings.first_token, own_answer.timings.first_token
    tokens = f"{answer.usage.prompt_tokens} tokens"
    print(f"{tokens:>12} {tick:>8} {seconds:7.2f} s {own_tick:>8} {own_seconds:7.2f} s")
print(f"{'mean':>12} {mean(first):>8.1f} {'':9} {mean(own_first):>8.1f}")

# %% [markdown]
# The mean is lower, but one request pays for it: the longest prompt is served last. If short ones kept coming, it would
# wait for ever. A policy may have a state of its own, such as how often it was asked about a request, and take that
# into account.
#
# The requests started in the order of their keys. The generated tokens are the same, because no policy changes them. A
# policy is not compiled into any program either: the second session found all its programs where the first had stored
# them.

# %%
lengths = [answer.usage.prompt_tokens for answer in answers]
begun = [fact.request for seen in own_trace.handled for fact in seen.facts if isinstance(fact, Begun)]
longest = lengths.index(max(lengths))

assert [request - 1 for request in begun[1:]] == sorted(range(8), key=lengths.__getitem__)
assert mean(own_first) < mean(first)
assert own_first[longest] == max(own_first)
assert [answer.token_ids for answer in own_answers] == [answer.token_ids for answer in answers]
assert compiled == 0

# %% [markdown]
# ## An actor: an answer that ends where the model is no longer sure
#
# The engine is made of actors that send each other messages ([03_four_actors](03_four_actors.ipynb)). `compose=` gets
# the actors before they run, and returns those that are to run. An actor is any object with a `handle` that takes a
# message and returns messages. It knows no other actor. So another actor can take its place if it takes and sends the
# same messages.
#
# The detokenizer takes `Outputs`, which has an `Output` with new tokens for each request of a tick, and says `Texts`.
# If a request has `logprobs=`, its `Output` also says how likely each token was. So an actor that stands before the
# detokenizer can end an answer at the first token that the model itself considers unlikely. Two messages do it:
#
# - The caller gets this `Output` through the real detokenizer, as the last one: its `end` is `"stop"`.
# - The scheduler gets `Stopped`, the same message by which the detokenizer reports a stop string. It frees the
#   request's slot and pages.
#
# The scheduler works ahead. When it hears of `Stopped`, tokens of later ticks may already be on their way. So this
# actor drops whatever comes of the request after its end.


# %%
class Careful:
    """An actor before the detokenizer that ends an answer at the first token less likely than `least`."""

    def __init__(self, detokenizer, least):
        self.detokenizer, self.least = detokenizer, math.log(least)
        self.tokens = Counter()
        self.stopped = set()

    def handle(self, message):
        outputs = []
        for output in message.outputs:
            request = output.request.id
            if request in self.stopped:
                if output.end is not None:  # the scheduler's answer to Stopped: nothing comes after it
                    self.stopped.remove(request)
                continue
            self.tokens[request] += len(output.token_ids)
            if output.end is None and any(scored.logprob < self.least for scored in output.logprobs):
                self.stopped.add(request)
                output = replace(output, end="stop")
                yield Stopped(request, self.tokens[request])
            if output.end is not None:
                del self.tokens[request]
            outputs.append(output)
        yield from self.detokenizer.handle(Outputs(tuple(outputs)))


def careful(actors):
    return replace(actors, detokenizer=Careful(actors.detokenizer, least=0.2))


# %% [markdown]
# First we run the model as it is. The heat map has a darker shade where a token was less likely; point at a token to
# see how likely it was.

# %%
ASKED = {"prompt": "The capital of France is", "max_tokens": 40, "temperature": 0, "logprobs": 0}

session = await rekindle.open("smollm2-135m-instruct", **SETTINGS)
full = await session.generate(**ASKED)
await session.close()
full

# %% [markdown]
# Now we put our actor in the detokenizer's place:

# %%
session = await rekindle.open("smollm2-135m-instruct", compose=careful, **SETTINGS)
short = await session.generate(**ASKED)
unscored = await session.generate(**ASKED | {"logprobs": None})
stats = session.stats.scheduler
await session.close()
short

# %% [markdown]
# The answer is the beginning of the full one, up to its first unlikely token, which is included and which `stopped_by`
# names. Nothing is left behind in the engine. A request that does not ask for `logprobs` has none in its outputs, and
# is not ended.

# %%
unlikely = [scored.logprob < math.log(0.2) for scored in full.logprobs]
assert short.token_ids == full.token_ids[: unlikely.index(True) + 1]
assert (short.finish_reason, short.stopped_by) == ("stop", short.token_ids[-1])
assert len(short.token_ids) < len(full.token_ids)
assert unscored.token_ids == full.token_ids
assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)

# %% [markdown]
# ## A family: a model that Rekindle does not know
#
# A Hugging Face directory says in `config.json` which architecture its model has. Many architectures are the same
# decoder under different names, or with one more part. Rekindle has one decoder. A **family** is data: it says which
# parts of the decoder a model has.

# %%
for name, family in FAMILIES.items():
    print(f"{name:6} {family}")

# %% [markdown]
# Suppose there is an `EmberForCausalLM` that has both extra parts: a bias for queries, keys and values, as Qwen2 has,
# and a norm for queries and keys, as Qwen3 has. We make a tiny one with random weights.

# %%
VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 256, 64, 128, 2, 4, 2, 16
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
# So we tell it. The model has no tokenizer, so its prompts are token ids. `prompt_logprobs=0` asks for the
# log-probability of each token of the prompt, which checks every position.

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
EMBER = Family("EmberForCausalLM", qkv_bias=True, qk_norm=True)

session = await rekindle.open(ember, family=EMBER, **TINY)
answer = await session.generate(token_ids=PROMPT, max_tokens=12, temperature=0, logprobs=0, prompt_logprobs=0)
await session.close()
answer

# %% [markdown]
# Is the result right? Random weights give no text that we could judge. So here is the same model once more, in numpy,
# as its authors might have published it: without a cache, without batches, and with every position computed each time.


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
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)  # no position sees a later one
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
# What if the family is wrong? If it names another architecture than the model's, `open` refuses. (It also refuses any
# family for a GGUF file, which says itself how to read it.) If the family claims a part whose weights are not in the
# file, `open` says so. But if it leaves a part out, the file only has tensors that nobody asks for. Then the model runs
# and gives wrong numbers. That is why the check above is worth its lines.

# %%
wrong = await rekindle.open(ember, family=Family("EmberForCausalLM", qkv_bias=True, qk_norm=False), **TINY)
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
# A family can say no more than this. A model whose layers are wired in another way needs another decoder. The place for
# it is `rekindle/models/decoder.py`, and [02_one_token_at_a_time](02_one_token_at_a_time.ipynb) walks through the
# decoder that is there.
