# %% [markdown]
# # 03 · Four actors
#
# Tutorial 02 made text in one loop: compute, choose a token, append it, repeat. A session has more to do. Requests
# come at any moment and end at different ones, a user cancels, and the device should never wait for Python. One loop
# for all of that would be hard to read and harder to test.
#
# So the work is divided among **actors**. An actor has a mailbox and a state of its own. It takes one message, changes
# its state, and answers with other messages; the code calls them what it *said*. It never calls another actor and never
# reads another's state.
#
# ```
# your cell ─Submit─▶ Intake ─Admit─▶ Scheduler ─Plan─▶ Stepper ─Dispatched─▶ Settler
#     ▲               tokens          what runs next    device               read back
#     │                               ▲  │                                       │
#     └──────Text────── Detokenizer ◀─┼──┘ Output                                │
#                       text          └───────────────── Settled ◀───────────────┘
# ```
#
# Four of them carry a request: intake, scheduler, stepper and detokenizer. The settler is the stepper's other half:
# it waits for the device, so that the stepper need not. Two more, the host tier and the disk tier, keep cached pages,
# and are silent here; tutorial 04 is theirs.
#
# In this notebook the engine is paused, and takes one message each time that you run a cell. It is the engine that
# serves every request, not a model of it.

# %%
from dataclasses import replace

import rekindle

SMALL = {
    "num_pages": 33,  # 32 pages of 64 tokens
    "max_running": 3,
    "max_prefill_tokens": 64,
    "prefill_buckets": [64],  # one compiled program for prompts,
    "decode_buckets": [3],  # and one for everything after: this opens in seconds (tutorial 05)
    "disk_cache_bytes": 0,  # nothing of earlier sessions is found
    "progress": False,
}

opened = {}


def keep(actors):
    """`compose` gets the actors before they run, and may replace them. Here they are only kept, to look at."""
    opened["actors"] = actors
    return actors


session = await rekindle.open("smollm2-135m-instruct", overlap=False, compose=keep, **SMALL)
session

# %% [markdown]
# Who takes which message is one table, in `engine.py`. Actors do not know it: they know message types.

# %%
actors = opened["actors"]
takes = {}
for message_type, actor in actors.by_message().items():
    takes.setdefault(actor, []).append(message_type.__name__)
for name, actor in vars(actors).items():
    print(f"{name:12} takes {', '.join(takes[actor])}")

# %% [markdown]
# ## One message at a time
#
# `session.pause()` returns when no actor is busy. From then on, messages wait in the mailboxes. `session.submit`
# still works: a submitted request is a `Submit` in the intake's mailbox.

# %%
await session.pause()
handle = session.submit("The capital of France is", max_tokens=3, temperature=0)


def waiting():
    for name, messages in session.pending.items():
        for message in messages:
            print(f"in the mailbox of {name}: {message}")


waiting()

# %%
assert session.paused
assert [name for name, messages in session.pending.items() if messages] == ["intake"]
assert session.stats.scheduler.waiting == 0  # the scheduler has not heard of it
assert list(session.requests.values()) == [handle]

# %% [markdown]
# `session.step()` lets the oldest message that waits be taken, and returns a `Handled`: the actor, what it took, and
# what it said. The first step is the **intake**'s. It turns text into token ids, and turns away what can never be
# served, such as a prompt longer than the context, before it costs anything.

# %%
taken = await session.step()
taken

# %%
request = taken.said[0].request
print([(token, session.decode([token])) for token in request.prompt])

# %% [markdown]
# The **scheduler** owns the waiting queue, the running set, the free pages and the prefix cache, all of it plain
# Python data. It answers with a `Plan` of one **tick**, which is one call of the device, and with `Started`, which
# goes to the caller.

# %%
planned = await session.step()
planned

# %% [markdown]
# The plan names everything that the device needs, by number. A **chunk** is the slice of a prompt that one tick
# computes, in blocks of 16 tokens, of which a page of 64 holds four. This one has five tokens, from position 0 on.
# Their keys and values go to page 1 (page 0 is the null page, for padding). The request's row in the batch is a
# **slot**. `completes` says that this chunk is the last of the prompt, so that a token is sampled.

# %%
plan = planned.said[0]
(chunk,) = plan.chunks
print(f"tick      {plan.tick}")
print(f"start     {chunk.start}")
print(f"tokens    {chunk.tokens}")
print(f"pages     {chunk.pages}    where each block of 16 tokens goes")
print(f"table     {chunk.table}    all pages of the request")
print(f"slot      {chunk.slot}")
print(f"completes request {chunk.completes.id}")

# %%
assert taken.actor == "intake"
assert request.prompt == chunk.tokens
assert planned.actor == "scheduler"
assert chunk.completes is request
assert 0 not in chunk.table
assert session.stats.scheduler.running == 1

# %% [markdown]
# The **stepper** owns what is on the device: weights, pages, slots. It packs the plan into one array of integers, and
# calls one compiled program, from embedding to sampled token. The call returns at once: `outputs` are arrays that the
# device may still be working on. `sampled` says whose token will be in which row.

# %%
dispatched = await session.step()
print(dispatched)
tick = dispatched.said[0]
print(type(tick.outputs.tokens).__name__, tick.outputs.tokens.shape, tick.sampled)

# %% [markdown]
# The **settler** waits for these arrays, on a thread of its own, and reads them. From here on the token is a number
# in Python.

# %%
settled = await session.step()
print(settled)
print([(request_id, session.decode([token])) for request_id, token in settled.said[0].tokens])

# %% [markdown]
# `Settled` goes back to the scheduler. It writes the token down, sees whether the request has ended, and plans the
# next tick. The request has no chunk any more, but a **decode row**: one token, which the device remembers itself.
# What is new for the caller goes on as an `Output`.

# %%
decoding = await session.step()
decoding

# %% [markdown]
# Two messages wait now. The next tick comes first, because it was said first: the device is not kept waiting for
# text.

# %%
waiting()

# %%
assert [said.__class__.__name__ for said in decoding.said] == ["Plan", "Output"]
assert not decoding.said[0].chunks
assert decoding.said[0].rows[0].request_id == request.id

# %% [markdown]
# The **detokenizer** owns half-finished characters and stop strings: a token may be a part of a character, and a stop
# string may be spread over tokens. Its `Text` goes to the handle in your cell. The rest of the request goes round the
# same circle twice more.

# %%
circle = []
while handled := await session.step():
    circle.append(handled)
    print(handled)
print()
print(repr(handle.result().text))

# %%
assert [handled.actor for handled in circle] == 2 * ["stepper", "detokenizer", "settler", "scheduler"] + ["detokenizer"]
assert handle.result().text == "".join(handled.said[0].text for handled in circle if handled.actor == "detokenizer")
assert handle.done
assert not session.requests
assert not any(session.pending.values())

# %% [markdown]
# The last plan is missing at the end: the scheduler knew that the third token is the last, and planned nothing after
# it.
#
# | actor | its state | it alone |
# |---|---|---|
# | intake | none to speak of | turns prompts into tokens, and turns requests away |
# | scheduler | waiting queue, running set, free pages, prefix tree | decides; it has no clock, no device and no files |
# | stepper | weights, pages and slots on the device | runs the steps |
# | settler | none | waits for their results |
# | detokenizer | unfinished characters, what may be the start of a stop string | makes text |
#
# Since no actor touches the state of another, each can be understood and tested alone: make a message, call `handle`,
# look at the answers.

# %%
from rekindle.engine.actors.detokenizer import Detokenizer
from rekindle.messages import Output
from rekindle.models.checkpoint.open import open_checkpoint

tokenizer = open_checkpoint("smollm2-135m-instruct").tokenizer
alone = Detokenizer(tokenizer)
rocket = session.encode("🚀")
pieces = [said.text for token in rocket for said in alone.handle(Output(request, (token,), None))]
print(f"tokens {rocket} become the texts {pieces}")

# %%
assert len(rocket) > 1
assert "".join(pieces) == "🚀"
assert all(piece in ("", "🚀") for piece in pieces)  # never half of it

# %% [markdown]
# ## Continuous batching
#
# One tick for several requests costs far less than one for each, because much of a tick is reading the weights, which
# all of them share. If all of a batch had to begin and end together, its short requests would wait for its longest.
# Therefore the scheduler makes up the batch anew at every tick: whoever has ended leaves, whoever waits takes the
# free slot.
#
# To see it exactly, the session stays paused, and requests are submitted and cancelled at chosen ticks. The session
# has three slots. `session.trace()` records what happens meanwhile.

# %%
from rekindle.messages import Plan, Settled


async def step_to(tick):
    """Step until the device has been given this tick."""
    while handled := await session.step():
        if isinstance(handled.message, Plan) and handled.message.tick == tick:
            return
    raise LookupError(f"nothing was left to do before tick {tick}")


def ask(prompt, max_tokens):
    return session.submit(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)


first = session.stats.scheduler.ticks + 1
with session.trace() as trace:
    long = ask("Once upon a time", max_tokens=16)
    await step_to(first + 3)
    short = ask("Three colours:", max_tokens=5)
    unwanted = ask("The longest story ever told begins", max_tokens=500)
    late = ask("One, two, three,", max_tokens=6)  # all three slots are taken by now
    await step_to(first + 12)
    unwanted.cancel()
    while await session.step():
        pass
trace.timeline()

# %% [markdown]
# Read it from left to right. The first request decodes alone. When two more come, one tick computes both their
# prompts, and the first has to pause for it: by default prompts go first (`ticks="combined"` lets them share a tick,
# at the price of more programs). Then three requests share each tick. The fourth waits until the second has ended,
# and takes its slot. The third is cancelled in the middle. A cancel is a message like all others: `Cancel` to the
# intake, `Withdraw` to the scheduler, and slot and pages are free for the next plan. Nobody else's tokens change. The
# hollow box before the cross is a token that was computed and dropped.

# %%
assert short.result().usage.completion_tokens == 5
assert late.result().usage.completion_tokens == 6
assert unwanted.done
try:
    unwanted.result()
except rekindle.RequestCancelled as error:
    print(error)
session.resume()
undisturbed = await session.generate("Once upon a time", max_tokens=16, temperature=0, ignore_eos=True)
assert undisturbed.token_ids == long.result().token_ids
assert session.stats.scheduler.free_pages == session.stats.scheduler.pages

# %% [markdown]
# What is it worth? Twelve requests, some of 4 new tokens, some of 24, on three slots. First in batches of three that
# begin and end together, as a loop around `generate` would do it. Then all at once, and the scheduler fills each slot
# as it becomes free. (The first prompt of each batch is computed alone, since the scheduler plans as soon as it hears
# of it.)

# %%
LENGTHS = [4, 4, 24] * 4


def prompts():
    return [(f"Fact number {number}:", length) for number, length in enumerate(LENGTHS)]


async def together(requests):
    """The results, and how many ticks they took. All are submitted before the first tick."""
    await session.pause()
    handles = [ask(prompt, max_tokens) for prompt, max_tokens in requests]
    before = session.stats.scheduler.ticks
    session.resume()
    return [await handle for handle in handles], session.stats.scheduler.ticks - before


with session.trace() as static:
    batches = [await together(prompts()[at : at + 3]) for at in range(0, len(LENGTHS), 3)]
with session.trace() as continuous:
    results, ticks = await together(prompts())

static_ticks = sum(ticks for _, ticks in batches)
print(f"in batches   {static_ticks:3} ticks, {sum(LENGTHS) / static_ticks:.1f} tokens in each")
print(f"continuously {ticks:3} ticks, {sum(LENGTHS) / ticks:.1f} tokens in each")

# %%
static.timeline()

# %%
continuous.timeline()

# %%
one_by_one = [result.token_ids for batch, _ in batches for result in batch]
assert one_by_one == [result.token_ids for result in results]  # the same answers
assert ticks < 0.8 * static_ticks

# %% [markdown]
# ## Overlap: the scheduler is one tick ahead
#
# So far each tick was planned after the last one had been read (`overlap=False`). While Python plans, the device has
# nothing to do. By default the scheduler plans tick n+1 before it has seen the token of tick n. It can, because it
# need not know the token: the device keeps it, and a decode row says only *whose* next token to compute.

# %%
from statistics import median


async def idle_milliseconds(session):
    """For each tick of one request: from the last one's outputs being read until it was given to the device."""
    handled = []
    with session.watch(handled.append):
        await session.generate("Once upon a time", max_tokens=24, temperature=0, ignore_eos=True)
    given = {each.message.tick: each.ended for each in handled if each.actor == "stepper"}
    read = {each.message.tick: each.ended for each in handled if each.actor == "settler"}
    return [1000 * (given[tick] - read[tick - 1]) for tick in given if tick - 1 in read]


without = await idle_milliseconds(session)
await session.close()

# %% [markdown]
# The next session overlaps. It also gets two actors of our own: `compose=` may put anything with a `handle` in place
# of an actor. The first is a **tap**: it passes everything on, and keeps a record of it.


# %%
class Tap:
    """Stands in for an actor, and records what it took and said."""

    def __init__(self, actor):
        self.actor, self.record = actor, []

    def handle(self, message):
        said = self.actor.handle(message)
        self.record.append((message, said))
        return said


# %% [markdown]
# The second is useful as it is. A speech synthesiser wants sentences, and tokens come in pieces of words. This
# detokenizer holds text back until a sentence is whole. It leaves the hard part, characters and stop strings, to the
# one that it wraps. (To a serious one, "Mrs. " would not be the end of a sentence.)

# %%
import re

from rekindle.messages import Text


class Sentences:
    """A detokenizer that says whole sentences."""

    def __init__(self, detokenizer):
        self.detokenizer, self.held = detokenizer, {}

    def handle(self, message):
        for said in self.detokenizer.handle(message):
            if isinstance(said, Text):
                text = self.held.pop(said.request_id, "") + said.text
                end = len(text) if said.end else max((m.end() for m in re.finditer(r"[.!?]\s+", text)), default=0)
                if end < len(text):
                    self.held[said.request_id] = text[end:]
                said = replace(said, text=text[:end])
            yield said


def composed(actors):
    opened["tap"] = Tap(actors.scheduler)
    opened["sentences"] = Sentences(actors.detokenizer)
    return replace(actors, scheduler=opened["tap"], detokenizer=opened["sentences"])


session = await rekindle.open("smollm2-135m-instruct", compose=composed, **SMALL)

# %%
overlapped = await idle_milliseconds(session)
print(f"overlap=False: the next tick was given to the device {median(without):.2f} ms after the last one was read")
print(f"overlap=True:  {-median(overlapped):.2f} ms before")

# %%
assert min(without) > 0
assert median(overlapped) < 0

# %% [markdown]
# Stepped by hand, the answer to `Admit` has two plans now. One is dispatched while the other is computed.

# %%
await session.pause()
handle = session.submit("The capital of France is", max_tokens=10, temperature=0, stop_token_ids=session.encode("."))
steps = []
while handled := await session.step():
    steps.append(handled)
for handled in steps[:5]:
    print(handled)

# %% [markdown]
# The price: an end that only the token tells, such as an end token, is seen one tick late. By then another tick is
# under way, and its token is **surplus**. The scheduler drops it by the request's id.

# %%
for handled in steps[-6:]:
    print(handled)
print(repr(handle.result().text))

# %%
plans = [said for handled in steps for said in handled.said if isinstance(said, Plan)]
tokens = [token for handled in steps if handled.actor == "settler" for token in handled.said[0].tokens]
assert [said.tick for said in steps[1].said if isinstance(said, Plan)] == [plans[0].tick, plans[0].tick + 1]
assert handle.result().finish_reason == "stop"
assert len(tokens) == len(handle.result().token_ids) + 1  # one was computed in vain
session.resume()

# %% [markdown]
# ## What the tap saw
#
# The tap has seen every message of the scheduler since the session was opened, each `Settled` among them. From these
# alone one can tell, for instance, how full the batches are while three requests run:

# %%
tap, seen = opened["tap"], len(opened["tap"].record)
answers = await session.generate(["One.", "Two.", "Three."], max_tokens=12, temperature=0, ignore_eos=True)
sizes = [len(message.tokens) for message, _ in tap.record[seen:] if isinstance(message, Settled)]
print("tokens in each tick:", sizes)

# %%
assert sum(sizes) == sum(len(answer.token_ids) for answer in answers) == 36
assert max(sizes) == 3

# %% [markdown]
# The record is worth more than a statistic. The scheduler has no clock, no device and no files: what it says follows
# from the messages alone. So a new scheduler, fed the recorded messages in this notebook's own thread, makes the same
# plans, to the last page number. A bug that was seen once can be replayed for ever.

# %%
from rekindle.config import Settings
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.scheduler import Scheduler

settings = Settings(**{name: value for name, value in SMALL.items() if name != "progress"})
limits = Limits.of(settings, open_checkpoint("smollm2-135m-instruct").config, itemsize=4)
again = Scheduler(limits)
replayed = [again.handle(message) for message, _ in tap.record]
print(f"{len(replayed)} messages replayed, {again.stats.ticks} ticks planned")

# %%
assert replayed == [said for _, said in tap.record]
assert again.stats == session.stats.scheduler

# %% [markdown]
# ## What the other detokenizer says
#
# The session streams sentences now. Nothing else had to change: pieces, stop strings, cancels and usage are as
# before.

# %%
sentences = []
question = [{"role": "user", "content": "Why is the sky blue?"}]
async for piece in session.stream(question, max_tokens=60, temperature=0):
    if piece.text:
        sentences.append(piece.text)
        print(repr(piece.text))

# %%
assert len(sentences) > 1
assert all(re.search(r"[.!?]\s+$", sentence) for sentence in sentences[:-1])
assert not opened["sentences"].held  # what was left was said at the end
await session.close()

# %% [markdown]
# What you have now: `pause`, `step`, `pending` and `watch` to look, `trace` to draw, `compose` to change. They are
# the same calls whether you want to learn, to debug, or to add a part of your own. The next tutorial looks at what
# the scheduler guards: the pages.
