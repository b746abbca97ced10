# %% [markdown]
# # 03 · Four actors
#
# Tutorial 02 made text in one loop: compute, choose a token, append it, repeat. A session has more to do. Requests come
# at any moment and end at different ones, users cancel, and the device should never wait for Python. One loop for all
# of that would be hard to read and harder to test.
#
# So the work is divided among **actors**. An actor has a mailbox and a state of its own. It takes one message, changes
# its state, and answers with other messages. It never calls another actor, and it never reads another actor's state.
#
# ```
# your cell ─Submit─▶ Intake ─Admit─▶ Scheduler ─Plan─▶ Stepper ─Dispatched─▶ Settler
#     ▲                │ ▲            what runs next    device               read back
#     │       Tokenize ▼ │ Tokenized  ▲  │                                       │
#     │              Tokenizer        │  │                                       │
#     └──────Texts───── Detokenizer ◀─┼──┘ Outputs                               │
#                       text          └───────────────── Settled ◀───────────────┘
# ```
#
# Four of them carry a request: intake, scheduler, stepper and detokenizer. The tokenizer helps the intake, because a
# long text takes seconds to tokenize. The settler helps the stepper: it waits for the device, so that the stepper need
# not wait. Two more, the host tier and the disk tier, keep cached pages. They have
# nothing to do here; tutorial 04 shows the host tier at work.
#
# In this notebook the engine is paused, and takes one message each time that you run a cell. It is not a model of the
# engine. It is the engine that serves every request.

# %%
from dataclasses import replace

import rekindle

SMALL = {
    "num_pages": 33,  # 32 pages of 64 tokens
    "max_running": 3,
    "max_prefill_tokens": 64,
    "prefill_buckets": [64],  # one compiled program for prompts,
    "decode_buckets": [3],  # and one for everything after: this opens in seconds (tutorial 05)
    "decode_steps": 1,  # one token in a tick, so that each can be followed; by default there may be several
    "disk_cache_bytes": 0,  # nothing of earlier sessions is found
    "progress": False,
}

opened = {}


def keep(actors):
    """Keep the actors, to look at. `compose` gets them before they run, and may replace them."""
    opened["actors"] = actors
    return actors


session = await rekindle.open("smollm2-135m-instruct", overlap=False, compose=keep, **SMALL)
session

# %% [markdown]
# One table, in `rekindle/core/engine/wiring.py`, says which actor takes which message. The actors do not know this
# table. They only know the types of messages.

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
# `session.pause()` returns when no actor is busy. From then on, messages wait in the mailboxes. `session.submit` still
# works: a submitted request is a `Submit` in the intake's mailbox.

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
# `session.step()` lets an actor take the oldest message that waits. It returns a `MessageRecord`: the actor, its
# message, and its answers. The first step is the **intake**'s. The intake admits requests, and keeps the requests
# of one caller in order. Text has to become token ids first, so the intake asks the **tokenizer**, which works in
# threads of its own. A request that can never be served, such as a prompt that is longer than the context, is rejected
# here, before it costs anything.

# %%
taken = await session.step()
taken

# %%
tokenized = await session.step()
tokenized

# %%
admitted = await session.step()
admitted

# %%
request = admitted.answers[0].request
print([(token, session.decode([token])) for token in request.prompt])

# %% [markdown]
# The **scheduler** owns the waiting queue, the set of running requests, the free pages and the prefix cache. All of
# them are plain Python data. It answers with a `Plan` for one **tick**, which is one call of the device, and with
# `Started`, which goes to the caller.

# %%
planned = await session.step()
planned

# %% [markdown]
# The plan names everything that the device needs, by number. A **chunk** is the slice of a prompt that one tick
# computes, in blocks of 16 tokens. A page of 64 tokens holds four blocks. This chunk has five tokens, from position 0
# on. Their keys and values go to page 1; page 0 is the null page, for padding. The request's row in the batch is its
# **slot**. `completes` says that this chunk is the last of the prompt, so that a token is sampled.

# %%
plan = planned.answers[0]
(chunk,) = plan.chunks
print(f"tick      {plan.tick}")
print(f"start     {chunk.start}")
print(f"tokens    {chunk.tokens}")
print(f"pages     {chunk.pages}    where each block of 16 tokens goes")
print(f"table     {chunk.table}    all pages of the request")
print(f"slot      {chunk.slot}")
print(f"completes request {chunk.completes.id}")

# %%
assert [handled.actor for handled in (taken, tokenized, admitted)] == ["intake", "tokenizer", "intake"]
assert request.prompt == chunk.tokens
assert planned.actor == "scheduler"
assert chunk.completes is request
assert 0 not in chunk.table
assert session.stats.scheduler.running == 1

# %% [markdown]
# The **stepper** owns what is on the device: weights, pages, slots. It packs the plan into one array of integers and
# calls one compiled program, which does everything from the embedding to the sampled token. The call returns at once:
# `outputs` are arrays that the device may still be working on. `sampled` says in which row each request's token will
# be.

# %%
dispatched = await session.step()
print(dispatched)
tick = dispatched.answers[0]
print(type(tick.outputs.tokens).__name__, tick.outputs.tokens.shape, tick.sample_rows)

# %% [markdown]
# The **settler** waits for these arrays, in a thread of its own, and reads them. From here on the token is a number in
# Python.

# %%
settled = await session.step()
print(settled)
print([(request_id, session.decode([token])) for request_id, token in settled.answers[0].tokens])

# %% [markdown]
# `Settled` goes back to the scheduler. The scheduler notes the token, checks whether the request has ended, and plans
# the next tick. In this plan the request has no chunk, but a **decode row**, which computes one token after the last
# one. The device itself remembers that last token. What is new for callers goes on as `Outputs`: one
# message a tick, with an `Output` for each request that got something.

# %%
decoding = await session.step()
decoding

# %% [markdown]
# Two messages wait now. The next tick comes first, because it was sent first. So the device does not wait until text is
# made.

# %%
waiting()

# %%
assert [said.__class__.__name__ for said in decoding.answers] == ["Plan", "Outputs"]
assert not decoding.answers[0].chunks
assert decoding.answers[0].rows[0].request_id == request.id

# %% [markdown]
# The **detokenizer** owns unfinished characters and the search for stop strings: a token may be a part of a character,
# and a stop string may be spread over several tokens. Its answer is `Texts`, with a `Text` for each output. It goes
# to the handle in your cell. Then the request goes round the same circle twice more.

# %%
circle = []
while handled := await session.step():
    circle.append(handled)
    print(handled)
print()
print(repr(handle.result().text))

# %%
assert [handled.actor for handled in circle] == 2 * ["stepper", "detokenizer", "settler", "scheduler"] + ["detokenizer"]
texts = [handled.answers[0].texts[0].text for handled in circle if handled.actor == "detokenizer"]
assert handle.result().text == "".join(texts)
assert handle.done
assert not session.requests
assert not any(session.pending.values())

# %% [markdown]
# At the end there is no plan. The scheduler knew that the third token is the last, and planned nothing after it.
#
# | actor | its state | it alone |
# |---|---|---|
# | intake | the requests that are not admitted yet | admits requests in order, and rejects others |
# | tokenizer | none | turns prompts into tokens |
# | scheduler | waiting queue, running set, free pages, prefix tree | decides; it has no clock, no device and no files |
# | stepper | weights, pages and slots on the device | runs the steps |
# | settler | none | waits for the results of the steps |
# | detokenizer | unfinished characters, what may be the start of a stop string | makes text |
#
# No actor touches the state of another. So each can be understood and tested alone: make a message, call `handle`, and
# look at the answers.

# %%
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.messages import Output, Outputs
from rekindle.formats.checkpoints.open import open_checkpoint

tokenizer = open_checkpoint("smollm2-135m-instruct").tokenizer
alone = Detokenizer(tokenizer)
rocket = session.encode("🚀")
said = [alone.handle(Outputs((Output(request, (token,), None),))) for token in rocket]
pieces = [text.text for (texts,) in said for text in texts.texts]
print(f"tokens {rocket} become the texts {pieces}")

# %%
assert len(rocket) > 1
assert "".join(pieces) == "🚀"
assert all(piece in ("", "🚀") for piece in pieces)  # never half of it

# %% [markdown]
# ## Continuous batching
#
# One tick for several requests costs far less than one tick for each, because much of a tick is spent on reading the
# weights, which all of them share. If all requests of a batch had to begin and end together, short requests would wait
# for the longest. Therefore the scheduler makes up the batch anew at every tick: a request that has ended leaves, and a
# request that waits takes the free slot.
#
# To show this exactly, the session stays paused, and requests are submitted and cancelled at chosen ticks. The session
# has three slots. `session.trace()` records what happens meanwhile.

# %%
from rekindle.core.messages import Plan, Settled


async def step_to(tick):
    """Step until the device has been given this tick."""
    while handled := await session.step():
        if isinstance(handled.message, Plan) and handled.message.tick == tick:
            return
    raise LookupError(f"nothing was left to do before tick {tick}")


def ask(prompt, max_tokens):
    """Submit a prompt as token ids, which the intake admits without the tokenizer."""
    return session.submit(token_ids=session.encode(prompt), max_tokens=max_tokens, temperature=0, ignore_eos=True)


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
# Read it from left to right. The first request decodes alone. When two more come, one tick computes both their prompts,
# and the first request pauses for that tick. By default, ticks of prompts and ticks of decode rows take turns, so that
# nobody who decodes pauses for longer. (`ticks="combined"` lets both share a tick, at the price of more programs.) Then
# three requests share each tick. The fourth waits until the second has ended, and
# takes its slot. The third is cancelled in the middle. A cancel is a message like all others: the intake takes
# `Cancel`, the scheduler takes `Withdraw`, and the slot and the pages are free for the next plan. The tokens of the
# other requests do not change. The hollow box before the cross is a token that was computed and dropped. If you see the
# picture as text, it is the `s`.

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
# How much does this save? The next cell runs twelve requests, of 4 or 24 new tokens, on three slots. It runs them first
# in batches of three that begin and end together, as a loop around `generate` would. Then it submits all of them at
# once, and the scheduler fills each slot as soon as it is free. (The first prompt of each batch is computed alone,
# because the scheduler plans as soon as it hears of it.)

# %%
LENGTHS = [4, 4, 24] * 4


def prompts():
    return [(f"Fact number {number}:", length) for number, length in enumerate(LENGTHS)]


async def together(requests):
    """Return the results, and how many ticks they took. All are submitted before the first tick."""
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
# So far each tick was planned after the last one had been read (`overlap=False`), and while Python plans, the device
# has nothing to do. By default the scheduler plans tick n+1 before it has seen the token of tick n. It can do so
# because it need not know the token. The device keeps the token, and a decode row only says *whose* next token to
# compute.

# %%
from statistics import median


async def idle_milliseconds(session):
    """Return for each tick how long after the last tick's outputs were read it was given to the device."""
    handled = []
    with session.watch(handled.append):
        await session.generate("Once upon a time", max_tokens=24, temperature=0, ignore_eos=True)
    given = {each.message.tick: each.ended for each in handled if each.actor == "stepper"}
    read = {each.message.tick: each.ended for each in handled if each.actor == "settler"}
    return [1000 * (given[tick] - read[tick - 1]) for tick in given if tick - 1 in read]


without = await idle_milliseconds(session)
await session.close()

# %% [markdown]
# The next session overlaps. It also gets two actors of our own: `compose=` may put any object with a `handle` in place
# of an actor. The first is a **tap**. It passes everything on, and keeps a record of it.


# %%
class Tap:
    """A stand-in for an actor that records what the actor took and said."""

    def __init__(self, actor):
        self.actor, self.record = actor, []

    def handle(self, message):
        said = self.actor.handle(message)
        self.record.append((message, said))
        return said


# %% [markdown]
# The second is of practical use. A speech synthesiser needs whole sentences, but tokens come as pieces of words. This
# detokenizer holds text back until a sentence is complete. It leaves the hard part, characters and stop strings, to the
# detokenizer that it wraps. (A serious one would know that "Mrs. " does not end a sentence.)

# %%
import re

from rekindle.core.messages import Texts


class Sentences:
    """A detokenizer that says whole sentences."""

    def __init__(self, detokenizer):
        self.detokenizer, self.held = detokenizer, {}

    def handle(self, message):
        for said in self.detokenizer.handle(message):
            yield Texts(tuple(map(self.whole, said.texts))) if isinstance(said, Texts) else said

    def whole(self, said):
        """Return a `Text` with the sentences that are complete, and hold the rest back."""
        text = self.held.pop(said.request_id, "") + said.text
        end = len(text) if said.end else max((m.end() for m in re.finditer(r"[.!?]\s+", text)), default=0)
        if end < len(text):
            self.held[said.request_id] = text[end:]
        return replace(said, text=text[:end])


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
# When the engine is stepped by hand, the answer to `Admit` now has two plans. The second can be dispatched while the
# device computes the first.

# %%
await session.pause()
handle = session.submit("The capital of France is", max_tokens=10, temperature=0, stop_token_ids=session.encode("."))
steps = []
while handled := await session.step():
    steps.append(handled)
for handled in steps[:7]:
    print(handled)

# %% [markdown]
# This has a price. Some ends are known only from the token itself, as with an end token. The scheduler sees such an end
# one tick late. By then another tick is under way. The device knows the end tokens of a request, and computes nothing
# for it in that tick. Of other ends, such as a stop string, it does not know: then the token is **surplus**, and the
# scheduler drops it by the request's id.

# %%
for handled in steps[-6:]:
    print(handled)
print(repr(handle.result().text))

# %%
plans = [said for handled in steps for said in handled.answers if isinstance(said, Plan)]
tokens = [token for handled in steps if handled.actor == "settler" for token in handled.answers[0].tokens]
assert [said.tick for said in steps[3].answers if isinstance(said, Plan)] == [plans[0].tick, plans[0].tick + 1]
assert handle.result().finish_reason == "stop"
assert len(tokens) == len(handle.result().token_ids)  # nothing was computed in vain
session.resume()

# %% [markdown]
# ## What the tap saw
#
# The tap has seen every message that the scheduler took since the session was opened, and so every `Settled`. These
# alone tell, for instance, how full the batches are while three requests run:

# %%
tap, seen = opened["tap"], len(opened["tap"].record)
answers = await session.generate(["One.", "Two.", "Three."], max_tokens=12, temperature=0, ignore_eos=True)
sizes = [len(message.tokens) for message, _ in tap.record[seen:] if isinstance(message, Settled)]
print("tokens in each tick:", sizes)

# %%
assert sum(sizes) == sum(len(answer.token_ids) for answer in answers) == 36
assert max(sizes) == 3

# %% [markdown]
# The record is good for more than statistics. The scheduler has no clock, no device and no files, so what it says
# follows from the messages alone. A new scheduler, which takes the recorded messages in this notebook's own thread,
# makes the same plans, down to the last page number. So a bug that was seen once can be replayed as often as you like.

# %%
from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.core.scheduler.scheduler import Scheduler

settings = rekindle.Settings(**{name: value for name, value in SMALL.items() if name != "progress"})
limits = resolve_limits(settings, open_checkpoint("smollm2-135m-instruct").config, itemsize=4)
again = Scheduler(limits)
replayed = [again.handle(message) for message, _ in tap.record]
print(f"{len(replayed)} messages replayed, {again.stats.ticks} ticks planned")

# %%
assert replayed == [said for _, said in tap.record]
assert again.stats == session.stats.scheduler

# %% [markdown]
# ## What the other detokenizer says
#
# The session streams sentences now. Nothing else had to change: pieces, stop strings, cancels and usage work as before.

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
# You now know how to look (`pause`, `step`, `pending` and `watch`), how to draw (`trace`), and how to change something
# (`compose`). These calls are the same whether you want to learn, to debug, or to add a part of your own. The next
# tutorial looks at what the scheduler guards: the pages.
