# %% [markdown]
# # 16 · Look inside
#
# A language model passes a vector for each token from layer to layer: the **residual stream**. Here, you read it, find
# the layer at which a model uses a fact, and change the stream so that the model turns to French. The experiments are
# classics of the field, on a model that runs on a laptop. It builds on [02](02_one_token_at_a_time.ipynb);
# [the guide](guides/looking_inside.md) has all options.

# %%
import math

import numpy as np

import rekindle

session = await rekindle.open(
    "smollm2-135m-instruct",
    num_pages=60,
    page_size=16,
    max_context=128,
    max_running=16,
    max_prefill_tokens=64,
    prefill_buckets=[64],
    decode_buckets=[16],
    progress=False,
)

# %% [markdown]
# ## What the layers pass on
#
# `look` computes a prompt and returns the stream after each layer. The picture shows the length of each vector. From an
# early layer on, the vector of the first token is huge. A head of attention that finds nothing of use in a text attends
# to this token.

# %%
italy = await session.look("The capital of Italy is")
italy

# %% [markdown]
# ## What each layer would say
#
# The **logit lens** stops the model early: it takes the stream after a layer for that of the last one. Read the last
# column from the bottom to the top. In the middle, the model has only a form in mind (a space, an article). The answer
# comes in the last layers.

# %%
await session.logit_lens(italy)

# %% [markdown]
# `explain` puts the lens of a whole answer on one card: choose a token to see the prediction of each layer in its
# place, its page in the prefix cache, and the tick that computed it. The card needs no kernel.

# %%
await session.explain("The capital of Italy is", max_tokens=6)

# %% [markdown]
# ## Where is the country?
#
# Somewhere, the word *Italy* at its own position must reach the last position, which answers. To find the layer, take
# the stream of another prompt at the country's position, and put it in place of this one: a **patch**. Fifteen patches
# run in one batch.

# %%
france = await session.look("The capital of France is")
country = france.tokens.index(" France")
layers = range(0, 30, 2)
patches = [rekindle.Patch(layer, france.at(layer)[country], tokens=country) for layer in layers]
handles = [session.submit("The capital of Italy is", patch=patch, max_tokens=1, logprobs=10) for patch in patches]


def share(answer, city):
    """Return the probability of a city as the first token of an answer."""
    return sum(math.exp(each.logprob) for each in answer.logprobs[0].top if each.text == city)


for layer, handle in zip(layers, handles, strict=True):
    answer = await handle
    rome, paris = share(answer, " Rome"), share(answer, " Paris")
    bars = ["█" * round(25 * each) for each in (rome, paris)]
    print(f"layer {layer:>2}   Rome {rome:4.0%} {bars[0]:<25}   Paris {paris:4.0%} {bars[1]}")

# %% [markdown]
# Before a certain layer, the answer follows the patch: the last position has not read the country yet. After it, the
# patch comes too late. Two neighbouring layers differ completely, so the fact moves in one step, by attention.

# %% [markdown]
# ## A direction
#
# What is common to French texts, and not to English ones? Take the mean of the stream over both, and subtract. The
# difference is a **direction**, and adding it to the stream of every token is **steering**.

# %%
FRENCH = [
    "Bonjour, je voudrais un café s'il vous plaît",
    "Nous avons mangé du pain et du fromage",
    "Il fait beau aujourd'hui et les enfants jouent dans le jardin",
    "La ville est très ancienne et pleine de musées",
]
ENGLISH = [
    "Hello, I would like a coffee please",
    "We have eaten bread and cheese",
    "The weather is nice today and the children play in the garden",
    "The town is very old and full of museums",
]
LAYER = 10


async def mean(texts):
    """Return the mean of the residual stream over the tokens of texts, without their first tokens."""
    looks = [await session.look(text, layers=LAYER) for text in texts]
    return np.concatenate([look.residual[0, 1:] for look in looks]).mean(axis=0)


direction = await mean(FRENCH) - await mean(ENGLISH)
steer = rekindle.Steering(LAYER, direction)
for prompt in ("The cat sat on", "She went to the", "Every morning, I drink"):
    plain, steered = (
        await session.generate(prompt, max_tokens=12),
        await session.generate(prompt, max_tokens=12, steer=steer),
    )
    print(f"{prompt}\n  as it is:{plain.text!r}\n  steered: {steered.text!r}")

# %% [markdown]
# The prompts are English, and the weights are the same. So small a model writes poor French, but it is French. The lens
# shows at which layers the French words appear, long after the direction was added.

# %%
await session.logit_lens(await session.look("Every morning, I drink", steer=steer))

# %% [markdown]
# ## What it costs
#
# Steered requests run in the same batches as others. Their programs are compiled at the first use, and stored, so a
# later session has them at once. The others keep their tokens, to the last bit with the native CPU kernels:

# %%
options = {"prompt": "The cat sat on", "max_tokens": 8, "logprobs": 0}
alone = await session.generate(**options)
beside = [session.submit(**options), session.submit(**options, steer=steer)]
plain, steered = [await handle for handle in beside]
assert plain.token_ids == alone.token_ids != steered.token_ids
[each.logprob for each in plain.logprobs] == [each.logprob for each in alone.logprobs]

# %%
await session.close()
