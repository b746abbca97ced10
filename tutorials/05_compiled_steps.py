# %% [markdown]
# # 05 · Compiled steps
#
# JAX does not run a model line by line. It traces the whole step once, from token ids to sampled tokens. XLA then
# compiles the trace into one **program**: its operations are fused, its memory is planned, and it can be run thousands
# of times. That makes the model fast, but it has a price. A program is compiled for the exact *shapes* of its
# arguments, and compiling takes seconds, while a tick takes milliseconds.
#
# The shapes of ticks differ all the time: 7 prompt tokens, then 300, then 3 running requests, then 4. This notebook
# shows how few programs are enough, what that costs, how all of them are made before they are needed, and what happens
# if one is missing.

# %%
import os
import tempfile
from pathlib import Path

import pictures  # of these tutorials, beside this notebook

import rekindle
from rekindle.core.store.directory import cache_dir

# This notebook has a cache directory of its own, so that every run is cold. It shares only the downloaded model.
made = tempfile.TemporaryDirectory(prefix="rekindle-")
cache = Path(made.name).resolve()
(cache / "models").symlink_to(cache_dir("models"))
os.environ["REKINDLE_CACHE"] = str(cache)

MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "weights": "dequantized",
    "num_pages": 33,
    "max_context": 512,
    "max_running": 8,
    "max_prefill_tokens": 128,
    "prefill_buckets": [16, 128],
    "decode_buckets": [1, 8],
    "overlap": False,  # one tick at a time, for clean timings
    "decode_steps": 1,  # and one token in it
    "prefix_cache": False,  # every prompt is computed
    "progress": False,
}

# %% [markdown]
# ## What compiling costs
#
# With `precompile="lazy"`, each program is made when it is first needed. With `restore="off"`, nothing is loaded from
# disk or stored there; tutorial 06 is about that. To time the ticks, we watch the messages of tutorial 03. A tick lasts
# from the moment when the stepper takes its plan until the settler has read its tokens.

# %%
from rekindle.core.messages import Plan


async def timed_ticks(session, **request):
    """Return (prompt tokens, decode rows, seconds) for each tick of one call of `generate`."""
    handled = []
    with session.watch(handled.append):
        await session.generate(**request, temperature=0, ignore_eos=True)
    plans = {each.message.tick: each for each in handled if each.actor == "stepper" and isinstance(each.message, Plan)}
    ticks = []
    for read in (each for each in handled if each.actor == "settler"):
        taken = plans[read.message.tick]
        prompt = sum(len(chunk.tokens) for chunk in taken.message.chunks)
        ticks.append((prompt, len(taken.message.rows), read.ended - taken.began))
    return ticks


session = await rekindle.open(MODEL, precompile="lazy", restore="off", **SETTINGS)
after_open = session.stats.compilations
lazy = {name: await timed_ticks(session, token_ids=[1000] * 10, max_tokens=3) for name in ("first", "second")}
for name, ticks in lazy.items():
    for prompt, rows, seconds in ticks:
        print(f"{name:6} request: {prompt:2} prompt tokens, {rows} decode rows {1000 * seconds:8.0f} ms")
print(session.stats.compilations - after_open, "programs compiled by requests")

# %% [markdown]
# The first request waited for the compiler twice: once for a program that computes prompts, and once for a program that
# continues them. Both programs were there for its third tick, and for the whole second request. Without them, a user
# waits seconds instead of milliseconds for the first token, and again for every new shape.

# %%
slow, fast = (sum(seconds for _, _, seconds in lazy[name]) for name in ("first", "second"))
assert session.stats.compilations - after_open == 2
assert slow > 4 * fast
assert lazy["first"][2][2] < lazy["first"][1][2] / 4  # the same kind of tick, without the compiler
await session.close()

# %% [markdown]
# ## Buckets
#
# So shapes are rounded up. A tick is padded to a **bucket**: a number of prompt tokens and a number of decode rows,
# from two short lists. What is added is computed and thrown away. Padding writes to the null page, and its tokens are
# never read.

# %%
from rekindle.core import buckets

print("by default, prompt tokens:", buckets.default_prefill_buckets(512))
print("by default, decode rows:  ", buckets.default_decode_buckets(32))
for needed in (7, 16, 17, 300):
    print(f"{needed} prompt tokens run as {buckets.smallest(buckets.default_prefill_buckets(512), needed)}")

# %% [markdown]
# A short list of sizes wastes time on padding, and a long one wastes time on compiling. For prompts, the sizes double
# from 64 on, so that in a tick of more than 32 tokens less than half is padding. For decode rows, they grow fourfold up
# to the largest, because a decode step mostly reads the weights, and that takes as long for a few rows as for many. By
# default a tick computes prompts *or* continues requests. So there is one program for each size in the two lists. With
# `ticks="combined"` a tick may do both, and each pair of sizes is one more program.

# %%
alone = buckets.all_buckets([16, 128], [1, 8], combined=False)
both = buckets.all_buckets([16, 128], [1, 8], combined=True)
print(f"{len(alone)} programs: {', '.join(f'{b.prefill_tokens}+{b.decode_rows}' for b in alone)}")
print(f"{len(both)} programs: {', '.join(f'{b.prefill_tokens}+{b.decode_rows}' for b in both)}")

# %%
assert buckets.smallest([16, 128], 16) == 16
assert buckets.smallest([16, 128], 17) == 128
assert set(alone) < set(both)
default = buckets.default_prefill_buckets(512)
assert all(buckets.smallest(default, needed) < 2 * needed for needed in range(33, 513))

# %% [markdown]
# ## Ahead of time
#
# By default (`precompile="background"`), `open` returns as soon as *any* request can be served: with the largest prompt
# bucket and the smallest decode bucket. The others are made in the background, preferably when no request runs. While a
# bucket's own program is not there, a larger one that is ready serves its ticks.

# %%
from time import perf_counter

start = perf_counter()
session = await rekindle.open(MODEL, **SETTINGS)
opened, programs_then = perf_counter() - start, session.stats.compilations
first = await session.generate("The capital of France is", max_tokens=4, temperature=0)
answered = perf_counter() - start
await session.precompiled(progress=False)
ready, programs_now = perf_counter() - start, session.stats.compilations
print(f"open after {opened:.1f} s with {programs_then} programs, first answer {first.text!r} after {answered:.1f} s")
print(f"all {programs_now} programs after {ready:.1f} s")

# %% [markdown]
# `await session.precompiled()` waits for the other programs, and with `precompile="all"`, `open` itself waits for them.
# Four of the programs are the steps of the four buckets. The other five are small: `empty` makes the pool and the
# slots, `enter` enters a request's penalties, `allow` sets which tokens its constraint allows, `gather` copies pages
# out, and `scatter` copies pages in.
#
# From here on nothing is compiled any more, whatever is asked. The counters say so.

# %%
await session.generate([f"Number {n}:" for n in range(8)], max_tokens=6)
await session.generate("A long prompt. " * 60, max_tokens=3, temperature=0.8, top_p=0.9, seed=1)
await session.generate("Penalties:", max_tokens=3, repetition_penalty=1.3, logit_bias={5: 2.0}, logprobs=3)
stats = session.stats
print(stats.programs, "programs,", stats.compilations, "compiled,", stats.unexpected_compilations, "unexpectedly")

# %%
assert programs_then < programs_now
assert opened < ready
assert stats.compilations == programs_now == len(alone) + 5
assert stats.unexpected_compilations == 0

# %% [markdown]
# ## What padding costs
#
# Now that all programs are there, we can measure what padding costs: we time prompts of growing length, and take the
# quickest of six ticks for each.


# %%
async def quickest(requests, rounds):
    """Return for each request the seconds of its quickest tick with all of its prompt tokens, or all of its rows."""
    seconds = dict.fromkeys(requests, float("inf"))
    for _ in range(rounds):  # the requests take turns, so that all of them see the same noise
        for (tokens, rows), request in requests.items():
            for tick in await timed_ticks(session, **request):
                if tick[:2] == (tokens, rows):
                    seconds[tokens, rows] = min(seconds[tokens, rows], tick[2])
    return list(seconds.values())


lengths = [1, 8, 16, 17, 64, 128]
prompts = {(length, 0): {"token_ids": [1000] * length, "max_tokens": 1} for length in lengths}
prefill = await quickest(prompts, rounds=6)


def draw_times(labels, seconds, title):
    """Draw a bar for each time."""
    return pictures.bars(
        title, [(label, each, f"{1000 * each:.0f} ms") for label, each in zip(labels, seconds, strict=True)]
    )


draw_times(
    [f"{length} of {buckets.smallest([16, 128], length)}" for length in lengths], prefill, "prompt tokens of a bucket"
)

# %% [markdown]
# The times go up like stairs. The seventeenth token is expensive, because with it 111 more are computed for nothing.
# Within a bucket, the cost hardly depends on how much of the bucket is used. Only attention depends on the real
# contexts, and they are short here.
#
# Now the same for decode rows:

# %%
counts = [1, 2, 4, 8]
running = {(0, count): {"token_ids": [[1000] * 5] * count, "max_tokens": 8} for count in counts}
decode = await quickest(running, rounds=2)
draw_times([f"{count} of {buckets.smallest([1, 8], count)}" for count in counts], decode, "decode rows of a bucket")

# %% [markdown]
# One request alone has a program of its own, without padding. Two requests already pay for eight rows. From there on,
# more requests are almost free: each row gives one more token, and the tick costs the same. That is why batches pay
# (tutorial 03). It is also why a session that mostly serves three requests at once may want a 3 in its
# `decode_buckets`.

# %%
by_length = dict(zip(lengths, prefill, strict=True))
by_count = dict(zip(counts, decode, strict=True))
assert by_length[17] > 1.5 * by_length[16]  # one token more
assert by_length[128] < 4 * by_length[17]  # more than seven times as many
assert by_count[8] < 3 * by_count[2]  # four times the tokens
await session.close()

# %% [markdown]
# ## A program that is missing
#
# The session stored its programs. The next session with the same settings loads them, and nothing is traced, lowered or
# compiled. With `restore="require"` it would refuse to open if even one program were missing.

# %%
start = perf_counter()
session = await rekindle.open(MODEL, restore="require", **SETTINGS)
await session.precompiled(progress=False)
print(f"{session.stats.loads} programs loaded, {session.stats.compilations} compiled, {perf_counter() - start:.1f} s")
loaded = session.stats
await session.close()

# %% [markdown]
# Why may a program *not* be found? Each program is stored under a digest of everything that makes it valid, and the
# parts of that key are stored beside it. If you ask for another number of pages, the pool has another shape.
# `session.restored` says what differs from the stored program that is most similar.

# %%
other = SETTINGS | {"num_pages": 40}
session = await rekindle.open(MODEL, precompile="lazy", **other)
await session.close()
session.restored

# %% [markdown]
# In a terminal, `rekindle cache explain` says the same for every program of a model, without opening it.

# %%
import contextlib
import io

from rekindle.__main__ import main

arguments = ["--num-pages=40", "--max-context=512", "--max-running=8", "--max-prefill-tokens=128"]
arguments += ["--prefill-buckets=16,128", "--decode-buckets=1,8", "--quiet"]
with contextlib.redirect_stdout(io.StringIO()) as said:
    main(["cache", "explain", MODEL, *arguments])
explained = said.getvalue().replace(str(cache), "REKINDLE_CACHE")
print(explained, end="")

# %%
assert loaded.loads == programs_now
assert loaded.compilations == loaded.unexpected_compilations == 0
assert session.restored.programs == 0
assert "statics (compiled-in sizes)" in explained
assert '"num_pages": 40' in session.restored.differences["statics"][0]
assert '"num_pages": 33' in session.restored.differences["statics"][1]

# %% [markdown]
# ## A compilation that nobody expected
#
# After `open`, every program that a tick can need is there. It also fits, because the engine makes all arguments in the
# shapes that it compiled for. Only a part of your own can break that. Here is one way. An actor of ours (tutorial 03)
# stands in front of the stepper. It rounds new weights to bfloat16, to see how that changes the answers. It should then
# cast them back to float32, but it forgets one array.

# %%
from dataclasses import replace

import jax.numpy as jnp

from rekindle.core.messages import UseWeights


class Rounding:
    """A stepper whose new weights are rounded to bfloat16."""

    def __init__(self, stepper):
        self.stepper = stepper

    def handle(self, message):
        if isinstance(message, UseWeights):
            rounded = [array.astype(jnp.bfloat16) for array in message.weights]
            weights = [array.astype(jnp.float32) for array in rounded[:-1]]
            message = replace(message, weights=[*weights, rounded[-1]])  # the last one is still bfloat16
        return self.stepper.handle(message)


session = await rekindle.open(
    MODEL, compose=lambda actors: replace(actors, stepper=Rounding(actors.stepper)), restore="require", **SETTINGS
)
await session.precompiled(progress=False)
for _ in range(2):  # the first run of a program in a process is slower than others
    exact = await session.generate("The capital of France is", max_tokens=6, temperature=0)
await session.update_weights(MODEL)  # the same weights again, through the actor

# %% [markdown]
# A compiled program refuses arguments of another type. The engine does not fail. It compiles the program once more for
# what it got, and counts this as unexpected. A warning says which argument differs and how.

# %%
import textwrap
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rounded = await session.generate("The capital of France is", max_tokens=6, temperature=0)
again = await session.generate("The capital of France is", max_tokens=6, temperature=0)
for warned in caught:
    print(textwrap.fill(str(warned.message), 110), end="\n\n")
print(f"{session.stats.unexpected_compilations} programs compiled unexpectedly")
print(f"first token before: {1000 * exact.timings.first_token:.0f} ms")
print(f"first token with the compiler: {1000 * rounded.timings.first_token:.0f} ms")
print(f"first token once its program is there: {1000 * again.timings.first_token:.0f} ms")
print(repr(exact.text), repr(rounded.text))

# %% [markdown]
# Here two programs were compiled, one for the prompt and one for the tokens after it. Others would follow when their
# buckets are needed. In production, look at the counter rather than at the clock: if
# `session.stats.unexpected_compilations` is not 0, something is wrong.

# %%
of_prompt, of_tokens = [str(each.message) for each in caught]
assert "dtype of weights[181] is bfloat16 instead of float32" in of_prompt
assert "step of 16+0" in of_prompt
assert "step of 0+1" in of_tokens
assert session.stats.unexpected_compilations == session.stats.compilations == 2
assert rounded.timings.first_token > 4 * again.timings.first_token
assert rounded.token_ids == again.token_ids
await session.close()
made.cleanup()

# %% [markdown]
# There are few shapes, and ticks are padded up to them. All their programs are made before they are needed. A counter
# must stay at zero, and if it does not, a warning explains why. The next tutorial kills the process, and shows what is
# found afterwards.
