# %% [markdown]
# # 08 · Extend it
#
# You may want to change who goes first, or what an actor does. For both, `rekindle.open` takes an argument, and a few
# lines of Python are enough: a **policy** or an **actor**. A model that Rekindle does not know is the subject of
# [09_a_model_family](09_a_model_family.ipynb).

# %%
import math
import re
import warnings
from collections import Counter
from dataclasses import replace
from inspect import getdoc
from statistics import mean
from typing import get_type_hints

from IPython.display import HTML

import rekindle
from rekindle.core import messages
from rekindle.core.engine.wiring import TO_CALLER, Actors
from rekindle.core.messages import Outputs, Stopped
from rekindle.markup import visible
from rekindle.views.records import StartRecord

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
# A policy of your own is a **sort key**: a function of a `rekindle.core.policy.Candidate`. The lowest key goes first,
# and among equal keys the request that came first. A candidate has four facts:
#
# - `request`, with its `prompt` as token ids;
# - `cached_tokens`, the number of tokens that need not be computed;
# - `started`, whether the request ran before and lost its pages to others;
# - `waited`, the number of ticks that were planned since the request came or, if it lost its pages, since then.
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


async def run(policy, coming):
    """Run all requests under a policy; return the answers of those that came, the trace, and the compilations."""
    async with rekindle.open("smollm2-135m-instruct", policy=policy, **SETTINGS) as session:
        await session.precompiled(progress=False)
        await session.pause()
        with session.trace() as trace:
            handles = [session.submit(prompt, max_tokens=6, temperature=0) for prompt in [RUNNING, *coming]]
            session.resume()
            answers = [await handle for handle in handles]
        return answers[1:], trace, session.stats.compilations


answers, trace, _ = await run("fcfs", COMING)
trace.timeline()

# %% [markdown]
# Each row is a request, and each column is a tick. Request 0 is the one that runs first. Now we run the same with our
# policy:

# %%
own_answers, own_trace, compiled = await run(shortest_first, COMING)
own_trace.timeline()

# %% [markdown]
# The short requests no longer wait for the documents. The next cell prints how long each waited for its first token, in
# ticks and in seconds:


# %%
def first_tokens(trace):
    """Return the tick that gave each request its first token, for those that came."""
    ticks = {}
    for seen in trace.records:
        if seen.kind == "Settled":
            for request in seen.requests:
                ticks.setdefault(request, seen.tick)
    return [ticks[request] for request in sorted(ticks)[1:]]


first, own_first = first_tokens(trace), first_tokens(own_trace)
print(f"{'prompt':>12} {'fcfs':>18} {'shortest first':>18}")
for answer, tick, own_answer, own_tick in zip(answers, first, own_answers, own_first, strict=True):
    seconds, own_seconds = answer.timings.first_token, own_answer.timings.first_token
    tokens = f"{answer.usage.prompt_tokens} tokens"
    print(f"{tokens:>12} {tick:>8} {seconds:7.2f} s {own_tick:>8} {own_seconds:7.2f} s")
print(f"{'mean':>12} {mean(first):>8.1f} {'':9} {mean(own_first):>8.1f}")

# %% [markdown]
# The mean is lower, but one request pays for it: the longest prompt is served last.
#
# The requests started in the order of their keys. The generated tokens are the same, because no policy changes them. A
# policy is not compiled into any program either: the second session found all its programs where the first had stored
# them.

# %%
lengths = [answer.usage.prompt_tokens for answer in answers]
begun = [fact.request for seen in own_trace.records for fact in seen.facts if isinstance(fact, StartRecord)]
longest = lengths.index(max(lengths))

assert [request - 1 for request in begun[1:]] == sorted(range(8), key=lengths.__getitem__)
assert mean(own_first) < mean(first)
assert own_first[longest] == max(own_first)
assert [answer.token_ids for answer in own_answers] == [answer.token_ids for answer in answers]
assert compiled == 0

# %% [markdown]
# ### Ageing
#
# If short requests kept coming, the longest prompt would wait for ever. The remedy is **ageing**: who has waited long
# enough goes first. That is what `waited` is for. Under this policy, the requests that have waited for 12 ticks go
# before those that have not, in the order in which they came:

# %%
PATIENCE = 12


def ageing(candidate):
    left = len(candidate.request.prompt) - candidate.cached_tokens
    old = candidate.waited >= PATIENCE
    return (not candidate.started, not old, 0 if old else left)


# %% [markdown]
# Now a document comes first, and twenty short requests come behind it. The next cell prints how many of them start
# before the document under each policy, and in which tick the document gets its first token.

# %%
CROWD = [COMING[0], *[prompt for prompt in COMING if len(prompt) < 60] * 4]


def before_the_document(trace):
    """Return how many of the crowd started before request 1, which has the document."""
    begun = [fact.request for seen in trace.records for fact in seen.facts if isinstance(fact, StartRecord)]
    return begun.index(1) - 1


passed = {}
for policy in (shortest_first, ageing):
    _, crowd_trace, _ = await run(policy, CROWD)
    passed[policy] = before_the_document(crowd_trace)
    tick = first_tokens(crowd_trace)[0]
    print(f"{policy.__name__:14} {passed[policy]:2} start before the document; its first token is of tick {tick}")

# %% [markdown]
# A state of its own would not help a policy here, such as how often it was asked about a request. It is asked only when
# a slot is free, and while two long answers are generated it is not asked at all.

# %%
assert passed[shortest_first] == len(CROWD) - 1
assert passed[ageing] < PATIENCE

# %% [markdown]
# ### What a policy cannot do
#
# - It sees the first 64 requests of the queue. In a longer queue, the others are not looked at until one of these has
#   left.
# - It does not choose who fits. If there are not enough pages for the request with the lowest key, nobody is admitted,
#   even if there would be enough for the second. Otherwise small requests could keep a large one waiting for ever.
# - It runs on the engine's thread, between two ticks. If it is slow, everybody waits.
# - It cannot end the engine. If it raises an error, or if its keys cannot be compared, a `RuntimeWarning` says so once,
#   with the policy's own traceback. From then on, the requests of the session start in the order in which they came.

# %%
PRIORITIES = {RUNNING: 0}


def by_priority(candidate):
    return PRIORITIES[candidate.request.prompt]  # wrong: the prompt of a request is token ids


with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    late_answers, _, _ = await run(by_priority, COMING)
said = str(told[0].message).splitlines()
print(said[0], "...", said[-1], sep="\n")

# %%
assert len(told) == 1
assert "KeyError" in said[-1]
assert [answer.token_ids for answer in late_answers] == [answer.token_ids for answer in answers]

# %% [markdown]
# ## An actor: an answer that ends where the model is no longer sure
#
# The engine is made of actors that send each other messages ([03_four_actors](03_four_actors.ipynb)). `compose=` gets
# the actors before they run, and returns those that are to run. An actor is any object with a `handle` that takes a
# message and returns messages. It knows no other actor. So another actor can take its place if it takes and sends the
# same messages.
#
# Before you write one, you need to know what the messages carry. The next cell makes a table of all of them: who takes
# each, what it says, and its fields. It is made of the classes in `rekindle.core.messages` and of the engine's own
# table of who takes what, so it holds for the version that you have installed.


# %%
def type_name(kind):
    """Return the name of a type without those of modules."""
    return kind.__name__ if isinstance(kind, type) else re.sub(r"\b(\w+\.)+", "", str(kind))


def described(kind):
    """Return what a docstring says of a class, and what it says of each field."""
    says, _, attributes = getdoc(kind).replace("`", "").partition("\n\nAttributes:\n")
    found = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", attributes, flags=re.MULTILINE)
    return says, {name: text for names, text in found for name in names.split(", ")}


def row(kind, taker):
    says, meanings = described(kind)
    lines = [
        f"<code>{name}: {visible(type_name(of))}</code> {visible(meanings.get(name, ''))}"
        for name, of in get_type_hints(kind).items()
    ]
    cells = (f"<b>{kind.__name__}</b><br>{taker}", visible(says), "<br>".join(lines))
    return "".join(f'<td style="text-align:left;vertical-align:top">{cell}</td>' for cell in cells)


named = Actors(**{name: name for name in get_type_hints(Actors)})  # names in place of actors
takers = named.by_message() | dict.fromkeys(TO_CALLER, "the caller")
kinds = [getattr(messages, name) for name in messages.__all__]
parts = [kind for kind in kinds if isinstance(kind, type) and not issubclass(kind, messages.Message)]
table = [row(kind, f"to {taker}") for kind, taker in takers.items()] + [row(kind, "a part") for kind in parts]
group = '<div role="group" aria-label="messages" tabindex="0" style="overflow-x:auto">'
HTML(f"{group}<table><tr>{'</tr><tr>'.join(table)}</tr></table></div>")

# %% [markdown]
# The last rows are not messages but parts of them. The picture at the top of `rekindle.core.messages` shows who says
# what.
#
# One line of this table is easy to overlook. `Withdraw` may come for a request that was **never admitted**, or one that
# has ended. That happens if a caller cancels a request in the moment in which it is rejected. So an actor that keeps
# something for each request must not expect to know every request that it is told to forget. In Python that is
# `pop(request_id, None)`, and not `del`. To see it, we step through such a moment:

# %%
session = await rekindle.open("smollm2-135m-instruct", **SETTINGS)
await session.pause()
too_long = session.submit("too long, " * 500)
seen = [await session.step(), await session.step()]  # the tokenizer has found out, and the intake does not know yet
too_long.cancel()
seen += [await session.step() for _ in range(3)]
session.resume()
for handled in seen:
    said = ", ".join(type(message).__name__ for message in handled.answers)
    print(f"{handled.actor:9} took {type(handled.message).__name__:9} and said {said or 'nothing'}")

# %%
assert [type(handled.message).__name__ for handled in seen] == ["Submit", "Tokenize", "Tokenized", "Cancel", "Withdraw"]
assert not any(isinstance(message, messages.Admit) for handled in seen for message in handled.answers)
assert {part.__name__ for part in parts} >= {"Chunk", "Row", "Output", "Text", "Copy"}

# %% [markdown]
# ### One of our own
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
# First we run the model as it is, in the session that is open. The heat map has a darker shade where a token was less
# likely; point at a token to see how likely it was.

# %%
ASKED = {"prompt": "The capital of France is", "max_tokens": 40, "temperature": 0, "logprobs": 0}

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
# An actor that stands before the scheduler, or before any other, is made in the same way: it takes what that one takes,
# and passes on what it does not want to change. Next: [09_a_model_family](09_a_model_family.ipynb) opens a model that
# Rekindle does not know.
