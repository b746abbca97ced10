# %% [markdown]
# # 10 · Several devices
#
# A model that is too large for one device can be shared out over several: each has a part of the weights, and all of
# them compute every token together. This notebook does that with one small model on one, two and four devices, counts
# what they tell each other, and shows what each of them holds. It builds on tutorial 02 for pages, and on tutorial 05
# for programs.
#
# Your machine need not have four devices. XLA can divide a CPU into **virtual** ones, each with memory of its own, that
# talk to each other as real ones do. They share the cores of one CPU, so nothing becomes faster here. The tokens, the
# programs and the numbers are those of real devices. XLA reads these variables when JAX first looks for its devices, so
# they come before everything else.

# %%
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["NPROC"] = "16"  # threads: devices that wait for each other must not keep the others from running

import jax
import pictures  # of these tutorials, beside this notebook

import rekindle

MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "num_pages": 17,
    "max_context": 256,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "prefill_buckets": [64],
    "decode_buckets": [4],
    "precompile": "lazy",
    "restore": "off",  # nothing is found that an earlier run has computed
    "progress": False,
}
jax.devices()

# %% [markdown]
# ## The same tokens
#
# `tensor=4` shares the model out over four devices, from the first on. Each has some of the attention heads, some of
# the inner features of the feed-forward layers, and some of the vocabulary. (Megatron cuts models so: Shoeybi et al.,
# 2019.) SmolLM2 has 9 heads of queries and 3 of keys. Neither number can be divided by 2 or by 4, and that does not
# matter: heads that are too few are repeated, and places that are left over stay empty.

# %%
PROMPT = "The three primary colours are"


async def answered(**mesh):
    """Return what a session over these devices answers, and the memory that it has."""
    async with await rekindle.open(MODEL, **mesh, **SETTINGS) as session:
        print(session)
        answer = await session.generate(PROMPT, max_tokens=16, temperature=0)
        return answer, session.memory


answers, memories = {}, {}
for tensor in (1, 2, 4):
    answers[tensor], memories[tensor] = await answered(tensor=tensor)
print(PROMPT + answers[4].text)

# %% [markdown]
# The tokens are the same on any number of devices. The sums are computed in another order, so the last digits of a
# logit may differ, as they do between two batch sizes.

# %%
assert answers[1].token_ids == answers[2].token_ids == answers[4].token_ids

# %% [markdown]
# ## What each device holds
#
# `session.memory` counts the bytes on all devices, and `on_each` what one of them has. With four devices, each has a
# little more than a quarter of the weights: norms are on all of them, and so are the heads that are repeated.

# %%
for tensor, memory in memories.items():
    each = memory.on_each
    sizes = ", ".join(f"{size / 1e6:6.1f} MB of {name}" for name, size in each.items() if name != "workspace")
    print(f"tensor={tensor}: {sizes} on each of {memory.devices}")

# %%
assert memories[4].on_each["weights"] < 0.4 * memories[1].weights
assert memories[2].on_each["weights"] < 0.7 * memories[1].weights

# %% [markdown]
# ## What they tell each other
#
# A device computes alone as long as it can. There are few places where it cannot, and each is a **collective**, an
# operation that all devices run together:
#
# - After the last product of attention, each device has numbers for the whole token, but only from its own heads. An
#   *all-reduce* adds up what all devices have. After the feed-forward layer there is another one.
# - The embedding of a token is on the device that has this part of the vocabulary. One more all-reduce brings it to
#   all of them.
# - For sampling, an *all-gather* joins the logits of all parts. Then every device draws the same token.
#
# That makes two all-reduces in each layer, one before the first layer, and one all-gather at the end. We need not
# believe it. The program of a step can be lowered from the model's config, and its collectives be found in its text.

# %%
import re

import jax.numpy as jnp

from rekindle.core.buckets import Bucket
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs, Sizes
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint

config = open_checkpoint(MODEL).config
sizes = Sizes(num_pages=17, page_size=64, pages_per_request=4, max_running=4, max_logprobs=5)


def collectives(tensor, data=1):
    """Return the collectives of a step that decodes four rows, in order."""
    place = Place(tuple(jax.devices()[: data * tensor]), data)
    programs = Programs(config, sizes, WeightForm(jnp.dtype("float32")), place)
    text = programs.lower(Bucket(prefill_tokens=0, decode_rows=4)).as_text()
    return re.findall(r"stablehlo\.(all_reduce|all_gather)", text)


found = {tensor: collectives(tensor) for tensor in (1, 2, 4)}
for tensor, kinds in found.items():
    print(f"tensor={tensor}: {kinds.count('all_reduce')} all-reduces, {kinds.count('all_gather')} all-gathers")
print(f"{config.num_layers} layers")

# %%
assert found[1] == []
assert found[2] == found[4] == ["all_reduce"] * (1 + 2 * config.num_layers) + ["all_gather"]

# %% [markdown]
# The program of one device has none at all: it is the same program as if Rekindle knew of no other devices. Here are
# the first layers and the end of a step on four devices. Each line is a device, which computes from the left to the
# right, and each bar is a collective, at which all of them wait for the last one.


# %%
def draw_step(kinds, devices, layers=3):
    """Draw the first collectives of a step and the last three, and what is computed between them."""
    between = ["embed", *["attend", "feed"] * config.num_layers, "logits", "sample"]
    stages = [*zip(between, [*kinds, None], strict=True)]
    columns = [*stages[: 1 + 2 * layers], ("…", None), *stages[-4:]]
    return pictures.step_on_devices(columns, devices)


draw_step(found[4], devices=4)

# %% [markdown]
# ## What that costs
#
# Devices are usually joined in a ring for this. An all-reduce of n devices then makes each of them send
# `2 (n - 1) / n` of what is added up, and an all-gather `(n - 1) / n` of what comes of it. So the bytes can be known
# before anything runs. `python -m rekindle info MODEL --mesh tensor=4` says them for any model.

# %%
from rekindle.results.facts.traffic import Wire

for tensor in (1, 2, 4):
    wire = Wire.of(config, tensor)
    sampled = f"{wire.per_sample:7,} more if one is drawn after it"
    print(f"tensor={tensor}: {wire.per_token:7,} bytes for a token, and {sampled}")

# %% [markdown]
# On one machine, devices send hundreds of gigabytes a second to each other, and this takes no time. What does take
# time is that all devices wait 61 times a token, a few microseconds each. A small model on many devices does little
# else. So by default a model gets one device if it fits there, and else the fewest that it fits.

# %%
assert Wire.of(config, 1).per_token == 0
assert Wire.of(config, 4).per_token > Wire.of(config, 2).per_token

# %% [markdown]
# ## More requests instead of a larger model
#
# `data=2` makes two groups of devices. Each group has the whole model, and pages and slots of its own; the settings of
# sizes are those of one group. There is still one queue: a request goes to the group that comes to its first token
# soonest, which is often the one that has its prefix cached. All groups compute their ticks in step. Here are eight
# requests on two groups of two devices, with four slots each.

# %%
async with await rekindle.open(MODEL, data=2, tensor=2, **SETTINGS) as session:
    many = await session.generate([f"{PROMPT}, for painter {n}," for n in range(8)], max_tokens=16, temperature=0)
    again = await session.generate(PROMPT, max_tokens=16, temperature=0)
    ticks = session.stats.scheduler.ticks
    print(session)

print(f"{ticks} ticks for {sum(len(each.token_ids) for each in [*many, again])} tokens")

# %%
assert again.token_ids == answers[1].token_ids
assert {len(each.token_ids) for each in many} == {16}
assert collectives(tensor=2, data=2) == found[2]  # each group runs them for itself

# %% [markdown]
# ## Your own devices
#
# On a machine with several GPUs, or TPU chips, all of this is the same without the first cell. `mesh=` takes a
# `jax.sharding.Mesh` with axes "data" and "tensor" instead, if you want to say which devices, and in which order.
# Programs of several devices are stored and come back after a restart like others, and a page that eight devices have
# written to disk is read by one.
