# %% [markdown]
# # 14 · Policies, lanes and replicas
#
# When many requests come at once, somebody waits. This notebook decides who: first with a **policy** of your own, which
# orders the waiting queue of one engine; then with **lanes**, several engines behind one queue, and a route that gives
# each request to one of them; and at last with **replicas**, engines in processes of their own, which live on when the
# kernel dies. It builds on tutorial 03 for ticks and on 06 for restarts.

# %%
import os
import time

import rekindle

MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "num_pages": 60,
    "page_size": 16,
    "max_context": 512,
    "max_running": 2,
    "max_prefill_tokens": 64,
    "prefill_buckets": [64],
    "decode_buckets": [2],
    "progress": False,
}

# %% [markdown]
# ## A burst
#
# Six long jobs arrive, and right behind them a short question. Two requests run at once, so five are waiting by then.
# In the order of arrival, the question comes last. It needs a second of work, and waits for all of the jobs.

# %%
JOBS = [f"Write a long story about a ship with {number} masts." for number in range(2, 8)]
QUESTION = "The capital of France is"


async def burst(session):
    """Submit the jobs and then the question; return the seconds that the question and all of it took."""
    began = time.perf_counter()
    jobs = [session.submit(job, max_tokens=48, ignore_eos=True) for job in JOBS]
    await session.generate(QUESTION, max_tokens=4)
    answered = time.perf_counter()
    for job in jobs:
        await job
    return answered - began, time.perf_counter() - began


waits = {}
async with rekindle.open(MODEL, **SETTINGS) as session:
    await session.precompiled(progress=False)
    waits["first come, first served"] = await burst(session)

# %% [markdown]
# A policy is a key as `sorted` takes it: the waiting request with the lowest key goes next. This one lets those go
# first that may generate least. Long jobs do not starve: whoever has waited for 1,024 ticks goes next in any order.


# %%
def shortest_first(candidate):
    """Order a waiting request by the tokens that it may still generate."""
    return candidate.request.longest - len(candidate.request.prompt)


async with rekindle.open(MODEL, policy=shortest_first, **SETTINGS) as session:
    await session.precompiled(progress=False)
    waits["shortest first"] = await burst(session)

for policy, (question, everything) in waits.items():
    print(f"{policy:25} the question {question:4.1f} s, everything {everything:4.1f} s")

# %% [markdown]
# The whole takes as long as before. Only the order has changed, and the question no longer pays for the jobs. Where you
# know at the call who is in a hurry, `priority=-1` says so without a policy.

# %%
assert waits["shortest first"][0] < waits["first come, first served"][0]

# %% [markdown]
# ## Lanes
#
# `replicas=2` opens two engines in this process, on devices of their own where there are two. Here both are on one CPU,
# so nothing becomes faster. What can be seen is where requests go. A **router** stands between the queue and the lanes.
# By default, a request goes to the lane that has the fewest tokens to compute until this request's first token. A lane
# that has cached the beginning of a prompt has less to compute, so requests with the same beginning meet in one lane.

# %%
MANUALS = [
    "You look after a lighthouse. Answer with one word about the sea. " * 4,
    "You look after a vineyard. Answer with one word about the wine. " * 4,
]
session = await rekindle.open(MODEL, replicas=2, **SETTINGS)
await session.precompiled(progress=False)
with session.trace() as trace:
    for question in ("What is its colour?", "How does it taste?", "Where does it come from?"):
        for manual in MANUALS:
            await session.generate(manual + question, max_tokens=4, ignore_eos=True)
trace.timeline()

# %% [markdown]
# Each row is a request, and each lane has a picture of its own. The first question of each manual had to be computed.
# The later ones found the manual in the lane that had it. `session.stats.lanes` counts for each lane what it found:

# %%
for number, lane in enumerate(session.stats.lanes):
    tokens = f"{lane.device_hit_tokens} tokens found, {lane.computed_tokens} computed"
    print(f"lane {number}: {lane.ended} requests, {tokens}")
assert all(lane.device_hit_tokens for lane in session.stats.lanes)
await session.close()

# %% [markdown]
# Round-robin looks at no tokens. With an uneven order of questions it computes a manual twice, once in each lane. A
# route of your own is a function: it gets the request and a `LaneLoad` for each lane, and returns a lane's number.


# %%
def by_manual(request, lanes):
    """Return lane 0 for the lighthouse, and lane 1 for all others."""
    return 0 if request.prompt[:12] == lighthouse else 1


found = {}
for name, route in (("round-robin", "round-robin"), ("prefix", "prefix"), ("by_manual", by_manual)):
    async with rekindle.open(MODEL, replicas=2, route=route, **SETTINGS) as session:
        manuals = [f"{name}: {manual}" for manual in MANUALS]  # which no earlier session has cached
        lighthouse = tuple(session.encode(manuals[0])[:12])
        for question in ("What is it?", "Who owns it?", "Is it old?"):
            for manual in (manuals[0], manuals[0], manuals[1]):
                await session.generate(manual + question, max_tokens=2)
        counts = session.stats.scheduler
        found[name] = counts.device_hit_tokens / counts.prompt_tokens
        print(f"{name:12} {found[name]:4.0%} of all prompts were found on the device")

# %% [markdown]
# ## Replicas
#
# Lanes live in this process and die with it. [Ray](https://docs.ray.io) runs processes that do not:
# `replicas=rekindle.Ray(2, keep=True)` puts each engine into one of them, and the session talks to them. What dies with
# a kernel then is a tokenizer and a queue. The weights, the compiled programs and the cached prefixes stay where they
# are, in memory.
#
# Kept replicas need a cluster that nobody's kernel owns. In a terminal that is `ray start --head`. This notebook starts
# one of its own, and stops it at the end.

# %%
from restarts import Cache, Kernel

from rekindle.testing.cluster import Cluster

os.environ["RAY_AUTH_MODE"] = "disabled"  # this cluster is for this notebook alone
cluster = Cluster()
os.environ["RAY_ADDRESS"] = cluster.address
cache = Cache()

# %% [markdown]
# These are the cells of somebody's notebook. A kernel runs them, and is then killed, which leaves it no time for
# anything. A second kernel runs the same cells.

# %%
SETTINGS["max_running"], SETTINGS["decode_buckets"] = 4, [4]
CELLS = {
    "import": "import rekindle",
    "open": f"session = await rekindle.open({MODEL!r}, replicas=rekindle.Ray(2, keep=True), **{SETTINGS})",
    "first token": "answer = await session.generate('Once upon a time, ' * 8, max_tokens=1)",
}
SHOW = "print(session.restored.nodes, answer.cached.total)"

seconds, counts = {}, {}
for name in ("first kernel", "second kernel"):
    kernel = await Kernel.start(cache)
    seconds[name] = await kernel.time(CELLS)
    counts[name] = [int(number) for number in (await kernel.run(SHOW)).split()]
    await kernel.kill()

# %%
for name, (nodes, cached) in counts.items():
    taken = ", ".join(f"{cell} {each:.1f} s" for cell, each in seconds[name].items())
    print(f"{name}: {taken}; {nodes} cached pages found, {cached} tokens of the prompt cached")

# %% [markdown]
# The first kernel had two processes started, which read the weights and compiled. The second one found them by their
# name. It read the tokenizer, and nothing else. Its prompt went to the replica that had computed it before.
#
# The name of a replica is made of the model and the settings, so the same cells find the same replicas. Nobody's kernel
# runs now, and they wait. (They notice after 20 seconds that a kernel is gone, and may still count its session.)
# `rekindle replicas` looks after them:

# %%
from rekindle.__main__ import main

assert main(["replicas", "ls"]) == 0

# %%
assert counts["second kernel"][0] > 0
assert counts["second kernel"][1] > 0
assert seconds["second kernel"]["open"] < seconds["first kernel"]["open"]

# %% [markdown]
# A replica may die too: a machine is switched off, or a driver fails. Its requests go on in another replica, after the
# tokens that have come already, and the result is the same: each draw depends on the seed of its request and on its
# position alone. Here the process of a replica is killed while it generates.

# %%
import logging
import signal

logging.getLogger("rekindle.replicas").setLevel(logging.ERROR)  # else a line says that a lane is lost, and is back

from rekindle.replicas.keeping import replicas

processes = [each.about.process for each in replicas(None)]
session = await rekindle.open(MODEL, replicas=rekindle.Ray(2, keep=True), **SETTINGS)
call = {"max_tokens": 40, "temperature": 1.0, "seed": 7, "ignore_eos": True}
expected = await session.generate("Once upon a time", **call)

running = [session.submit("Once upon a time", **call) for _ in range(4)]
os.kill(processes[0], signal.SIGKILL)
answers = [await each for each in running]
assert all(answer.token_ids == expected.token_ids for answer in answers)
print(expected.text)

# %% [markdown]
# Stopping them gives their memory back. They write what they have cached to disk first, so that the next ones start
# warm, as in tutorial 06.

# %%
await session.close()
assert main(["replicas", "stop", "--all"]) == 0
cluster.stop()
cache.remove()

# %% [markdown]
# ## Try it
#
# - Give the jobs `priority=1` instead of a policy, and run the burst again.
# - Open lanes with `route="shortest-queue"`, and ask six times about one manual at once. When is that better?
# - Open the same replicas from two notebooks, and look at `rekindle replicas ls` while both generate.
