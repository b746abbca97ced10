# %% [markdown]
# # 04 · Pages and prefixes
#
# To compute a token, the model reads the keys and values of all tokens before it. They are kept, because otherwise each
# token would cost as much as the whole text so far (tutorial 02). They take room: two vectors for each token in each
# layer.
#
# How much room a request will need is not known when it starts, because nobody knows when it will end. So keys and
# values live in **pages** of a few tokens each. When a request's last page is full, it gets another one. The keys and
# values in a page depend only on its tokens and on those before them. So two requests that begin the same can read the
# same pages. This notebook follows pages through a pool that is small enough to draw.

# %%
import pictures  # of these tutorials, beside this notebook

import rekindle

PAGE = 16  # tokens; the default is 64
opened = {}


def keep(actors):
    """Keep the actors, to look at the scheduler's prefix tree."""
    opened["scheduler"] = actors.scheduler
    return actors


session = await rekindle.open(
    "smollm2-135m-instruct",
    page_size=PAGE,
    num_pages=17,  # 16 pages, and the null page, which padding writes to
    host_cache_bytes=8 * 737_280,  # room for 8 pages in host memory
    disk_cache_bytes=0,  # no pages on disk, so nothing of earlier sessions is found
    max_running=4,
    max_prefill_tokens=64,
    prefill_buckets=[64],
    decode_buckets=[4],
    decode_steps=1,  # one token in a tick, to stop between them
    compose=keep,
    progress=False,
)
session

# %% [markdown]
# SmolLM2 has 30 layers. Each has keys and values of 3 heads, of 64 numbers each. In float32, this gives the size of a
# page:

# %%
page_bytes = 2 * 30 * 3 * 64 * 4 * PAGE
print(f"{page_bytes:,} bytes a page, {page_bytes // PAGE:,} a token")

# %%
assert page_bytes == 737_280
assert session.stats.scheduler.pages == session.stats.scheduler.free_pages == 16
assert session.cache.nodes == 0

# %% [markdown]
# ## The pages of one request
#
# The picture below shows the pool, with a box for each page. What it shows comes from two places. The scheduler tells
# what the prefix tree holds (`scheduler.look`). The plans tell which pages a request has for itself: a chunk carries
# its request's **page table**, which lists the pages in the order of positions, and a decode row carries the page that
# its token goes to.

# %%
from rekindle.core.messages import Fetch, Fetched, Plan

tables = {}  # request id -> its pages in the order of positions


def note(handled):
    """Keep the page tables up to date. This function is told of every message."""
    if handled.actor == "stepper" and isinstance(handled.message, Plan):
        for chunk in handled.message.chunks:
            tables[chunk.request_id] = list(chunk.table)
        for row in handled.message.rows:
            if row.page not in tables[row.request_id]:
                tables[row.request_id].append(row.page)


def cached_pages():
    """Return how often each page of the tree is locked, and its text, for those that are on the device."""
    return opened["scheduler"].look(
        lambda trees: {  # one tree, as there is one device
            node.page: (node.locks, session.decode(trees[0].tokens_of(node)))
            for node in trees[0].walk()
            if node.page is not None
        }
    )


def pool_states():
    """Return for each page of the pool what it is now, and its text or its owner."""
    cached = cached_pages()
    own = {page: request_id for request_id in session.requests for page in tables.get(request_id, ())}
    states = dict.fromkeys(range(1, session.stats.scheduler.pages + 1), ("free", ""))
    states |= {page: ("own", f"of request {request_id}") for page, request_id in own.items()}
    return states | {page: ("locked" if locks else "cached", text) for page, (locks, text) in cached.items()}


def draw_pool(staged=()):
    """Draw the pool: cached pages are orange, locked ones have a thick edge, and requests' own pages are grey.

    Texts of pages that are staged for a request are drawn below it.
    """
    return pictures.pool(pool_states(), staged)


# %% [markdown]
# Now a prompt of a bit more than two pages, stopped after a few ticks (`pause` and `step` are explained in tutorial
# 03):

# %%
KEEPER = (
    "The keeper of the lighthouse wrote every day in a blue book. On Monday he wrote about the wind, and on Tuesday "
    "about the ships that came home late. On Wednesday"
)
print(len(session.encode(KEEPER)), "tokens")


async def step_to(tick):
    """Step until the device has been given this tick."""
    while handled := await session.step():
        if handled.actor == "stepper" and isinstance(handled.message, Plan) and handled.message.tick == tick:
            return


await session.pause()
with session.watch(note):
    keeper = session.submit(KEEPER, max_tokens=30, temperature=0, ignore_eos=True)
    await step_to(session.stats.scheduler.ticks + 3)
print("page table:", tables[0])
draw_pool()

# %% [markdown]
# The prompt's two whole pages are **published** already: they are in the prefix tree, where another request could find
# them. They are also locked, because a running request reads them. The third page has room left, and belongs to the
# request alone. Some ticks later, in the next picture, the text has outgrown the third page, and a fourth has been
# taken. Nothing was moved. (The pages that a request generates are published when it ends.)

# %%
before = list(tables[0])
with session.watch(note):
    await step_to(session.stats.scheduler.ticks + 20)
print("page table:", before, "and later", tables[0])
draw_pool()

# %%
states = [state for state, _ in pool_states().values()]
assert tables[0][: len(before)] == before
assert len(tables[0]) == len(before) + 1
assert states.count("locked") == 2
assert states.count("own") == len(tables[0]) - 2
session.resume()
first = await keeper

# %% [markdown]
# ## What stays
#
# When the request has ended, its whole pages stay in the tree, those of the prompt and those of the answer. They are no
# longer locked, so they count as free: a request that needs room may take them. The last, unfinished page is given
# back.

# %%
print(session.stats.scheduler.free_pages, "pages can be had")
draw_pool()

# %%
session.cache.draw()

# %% [markdown]
# Now the same prompt again, and one that begins the same. A **prefix** is found page by page: each node of the tree is
# one page of tokens that follows the page above it. Only whole pages are found. Besides, the last block of 16 tokens of
# a prompt is always computed, because it gives the logits of the next token. For `whole`, that is all that is computed,
# since both of its pages are cached.

# %%
with session.watch(note):
    same = await session.generate(KEEPER, max_tokens=30, temperature=0, ignore_eos=True)
    other = await session.generate(KEEPER + " he counted the gulls", max_tokens=4, temperature=0)
    whole = await session.generate(token_ids=session.encode(KEEPER)[: 2 * PAGE], max_tokens=4, temperature=0)
for name, answer in (("first", first), ("same", same), ("other", other), ("whole", whole)):
    print(f"{name:6} {answer.usage.prompt_tokens} prompt tokens, of them cached: {answer.cached}")

pictures.page_tables(dict(zip(("first", "same", "other", "whole"), tables.values(), strict=True)), PAGE)

# %% [markdown]
# Below each page number are the positions that the page has in its request. The first two pages are in all four tables.
# They are the same pages, not copies. Each request has the other pages for itself.

# %%
assert first.cached_tokens == 0
assert same.cached_tokens == other.cached_tokens == 2 * PAGE
assert whole.cached_tokens == PAGE  # both of its pages are cached; the last 16 tokens are computed in any case
assert same.token_ids == first.token_ids
assert all(table[:2] == tables[0][:2] for table in tables.values())
assert session.stats.scheduler.device_hit_tokens == 5 * PAGE

# %% [markdown]
# Next, several requests come at once and share a beginning that is *not* cached. It would be a waste if each of them
# computed it. The scheduler lets one of them do so. The others wait for the tick that publishes it, and find it.

# %%
TOWN = (
    "Our town has one street, two shops and a river that nobody has crossed since the old bridge fell down. Every "
    "spring the mayor promises us a new one, and every autumn"
)
await session.pause()
plans = []
with session.watch(lambda handled: plans.append(handled.message) if isinstance(handled.message, Plan) else None):
    handles = [session.submit(TOWN + end, max_tokens=2, temperature=0) for end in (" we", " they", " you", " it")]
    session.resume()
    answers = [await handle for handle in handles]
plans = [plan for plan in plans if plan.chunks]
for plan in plans:
    chunks = [f"request {chunk.request_id} from {chunk.start} on" for chunk in plan.chunks]
    print(f"tick {plan.tick}:", "; ".join(chunks))
print("cached:", [answer.cached_tokens for answer in answers])

# %%
assert [len(plan.chunks) for plan in plans] == [1, 3]
assert [answer.cached_tokens for answer in answers] == [0, 2 * PAGE, 2 * PAGE, 2 * PAGE]

# %% [markdown]
# ## Held prefixes
#
# A cached page may be evicted at any time. If many questions about a document will follow, the document can be held:
# `session.prefix` computes it, and a lock keeps its pages on the device until it is released. `fork` gives more handles
# of the same pages, each with a lock of its own, and computes nothing.

# %%
RULES = (
    "Rules of the library. Books are lent for three weeks. Two renewals are allowed, unless another reader waits. A "
    "late book costs ten cents a day. Lost books are replaced by the reader. Talking is allowed in the hall, and "
    "eating nowhere. Children are welcome at all hours, dogs on Fridays. The door is closed at eight."
)
rules = await session.prefix(RULES)
before = session.stats.scheduler.computed_tokens
mine, yours = await rules.fork(2)
print(rules, mine, yours)
print(session.stats.scheduler.computed_tokens - before, "tokens computed for the forks")
session.cache.draw()

# %%
answers = await rules.generate([" A book that is late", " A dog may come"], max_tokens=8, temperature=0)
print([answer.text for answer in answers], [str(answer.cached) for answer in answers])

# %%
held = {page for page, (locks, text) in cached_pages().items() if locks}
assert len(held) == rules.tokens // PAGE
assert {locks for locks, text in cached_pages().values() if locks} == {3}
assert session.stats.scheduler.computed_tokens - before < 2 * 2 * PAGE  # the questions, and nothing of the rules
assert all(answer.cached_tokens == rules.tokens // PAGE * PAGE for answer in answers)
mine.release()
yours.release()

# %% [markdown]
# ## Eviction, and back
#
# Most of the pool holds cached pages. Now strangers come, and need more pages than are left. To make room, the
# scheduler **evicts** the page that was not used for longest. Along a path of the tree the last page goes first,
# because a page is of no use without those before it. Before a page is reused, its content is **offloaded**: it is
# copied to host memory, the *host tier*.

# %%
MARKET = " went to the market on a rainy day in June to see what there was to buy, and came back with an umbrella"


async def stranger(who):
    return await session.generate(who + MARKET, max_tokens=24, temperature=0, ignore_eos=True)


handled = []
with session.watch(handled.append):
    for who in ("A baker", "Seven sailors", "My uncle"):
        await stranger(who)
draw_pool()

# %%
session.cache.draw()

# %% [markdown]
# The rules are held, so they are still on the device. Other pages are in host memory (H), or in both (DH). When few
# pages are free, the pages that will be evicted next are offloaded ahead of time, so that no request has to wait for
# it. The next cell prints the messages of one such copy: the scheduler asks for it with `Offload`, the stepper copies
# the pages between two ticks and says `Gathered`, and the host tier keeps them and says `Offloaded`.

# %%
kinds = ("Offload", "Gathered", "Offloaded")
copies = [each for each in handled if type(each.message).__name__ in kinds]
for each in copies[:3]:
    print(each)

# %%
assert held <= set(cached_pages())
assert session.cache.host_pages > 0
assert session.stats.scheduler.host_hit_tokens == 0

# %% [markdown]
# Now the keeper comes back. His pages are in host memory. They return in two steps. First they are **staged**: copied
# to the device, but to memory of their own *beside* the pool. This takes a while, and other requests go on meanwhile.
# The pool has not changed yet, and the keeper's request still waits. The next cell steps to the moment in which the
# copies have come and the scheduler has not heard of it:

# %%
handled = []


def waits_for(actor, kind):
    return any(isinstance(message, kind) for message in session.pending.get(actor, ()))


await session.pause()
with session.watch(handled.append):
    keeper = session.submit(KEEPER, max_tokens=30, temperature=0, ignore_eos=True)
    while not waits_for("scheduler", Fetched):
        await session.step()
fetch, fetched = handled[-1].message, handled[-1].answers[0]
in_host = opened["scheduler"].look(
    lambda trees: {
        node.host: session.decode(trees[0].tokens_of(node)) for node in trees[0].walk() if node.host is not None
    }
)
staged = [in_host[copy.entry] for copy in fetch.copies]
free_while_staged = session.stats.scheduler.free_pages
print(f"{sum(page.nbytes for page in fetched.staged):,} bytes are staged;", session)
draw_pool(staged)

# %% [markdown]
# Then the request is admitted, and gets pages of the pool. The same plan says `onload`: before the tick is computed,
# each staged page is copied to its page of the pool. Now the memory beside the pool is free again. From here on, it is
# as if the pages had never left.

# %%
with session.watch(handled.append), session.watch(note):
    while not waits_for("stepper", Plan):
        await session.step()
    plan = next(message for message in session.pending["stepper"] if isinstance(message, Plan))
    await step_to(plan.tick)
print("onloaded to pages", plan.onloads[0].pages)
draw_pool()

# %% [markdown]
# These are the messages of the way back:

# %%
session.resume()
back = await keeper
at = next(place for place, each in enumerate(handled) if isinstance(each.message, Fetch))
for each in handled[at - 1 : at + 2]:
    print(each)
print("cached:", back.cached)

# %% [markdown]
# Staged pages take memory on the device that is not the pool's. So there is a bound: at most a quarter of the pool's
# size is staged at once for all who wait. Only a single request may have more, if it alone needs more. The others wait
# until what is staged has been onloaded.

# %%
assert len(fetched.staged) == len(staged) == len(plan.onloads[0].pages)
assert all(page.nbytes == page_bytes for page in fetched.staged)
assert free_while_staged == session.stats.scheduler.pages - len(held)  # all but the rules: nothing staged is in it
assert back.token_ids == first.token_ids
assert back.cached.host == len(staged) * PAGE
assert back.cached.host == session.stats.scheduler.host_hit_tokens

# %% [markdown]
# Host memory is bounded too, here to eight pages. The page there that was not used for longest is **pruned**. Then it
# is gone, or only on disk if `disk_cache_bytes` allows that (tutorial 06). After enough strangers, nothing of the town
# is left.

# %%
for who in ("An old clock", "My neighbour", "The president", "A small dog", "Nobody"):
    await stranger(who)
assert session.cache.host_pages <= 8
lost = await session.generate(TOWN + " we", max_tokens=2, temperature=0)
print("cached of the town:", lost.cached)
print("cached of the rules:", (await rules.generate(" A dog", max_tokens=2, temperature=0)).cached)

# %%
assert lost.cached_tokens == 0
assert lost.token_ids == (await session.generate(TOWN + " we", max_tokens=2, temperature=0)).token_ids
assert held <= set(cached_pages())

# %% [markdown]
# ## Preemption
#
# Running requests grow, and locked pages cannot be evicted. What happens if all pages are locked and a request needs
# one more? Then the request that was admitted last gives its pages back and returns to the head of the waiting queue:
# it is **preempted**. Later it is computed again from its tokens, including those that it has generated, as far as they
# are not found in the cache.
#
# The rules take a part of the pool, and three requests together need more than the rest. One of them draws at random,
# with a seed.

# %%
WANTED = [
    {"prompt": "In the beginning there was", "temperature": 0.0},
    {"prompt": "The recipe says: take one", "temperature": 1.0, "seed": 5},
    {"prompt": "My grandmother used to say that", "temperature": 0.0},
]
alone = [await session.generate(**wanted, max_tokens=90, ignore_eos=True) for wanted in WANTED]
counts = session.stats.scheduler

await session.pause()
with session.trace() as trace:
    handles = [session.submit(**wanted, max_tokens=90, ignore_eos=True) for wanted in WANTED]
    session.resume()
    together = [await handle for handle in handles]
now = session.stats.scheduler
again = now.recomputed_tokens - counts.recomputed_tokens
print(now.preemptions - counts.preemptions, "preemptions,", again, "tokens computed again")
trace.timeline()

# %% [markdown]
# The red bars are requests that wait for pages. The one that was admitted last was the first to give up its own. Here
# it is also the one that came last, but under another policy (tutorial 08) it need not be. The plan that follows names
# it, in `preempted`. Full pages go to the tree before they are given up, so hardly anything had to be computed again.
#
# This does not change the output. Random numbers depend only on the seed and the position, and the keys and values of a
# token depend only on the tokens up to it, wherever and whenever they are computed.

# %%
assert now.preemptions > counts.preemptions
assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
assert now.generated_tokens - counts.generated_tokens == 3 * 90

# %% [markdown]
# ## When held prefixes take the whole pool
#
# Preemption ends when the last other request has given its pages back. Pages of held prefixes are not given back: the
# engine keeps its promise until you release them. So they can use up the pool alone. Here the rules hold four pages,
# and a history of the town holds ten more:

# %%
history = await session.prefix((TOWN + " we wait. ") * 4 + RULES[:100])
print(history.tokens, "tokens are held;", session)
draw_pool()

# %% [markdown]
# Two pages are left. A request of three pages would have to wait until somebody releases a prefix, which may be never.
# So it fails, as soon as nothing else runs that could make room by ending:

# %%
try:
    await session.generate(KEEPER, max_tokens=4)
except rekindle.PromptTooLong as error:
    too_long = str(error)
print(too_long)

# %% [markdown]
# A short request finds room in these pages. If its answer outgrows them, it fails in the same way, in the middle of its
# answer:

# %%
short = await session.generate("A long story:", max_tokens=8, temperature=0)
print(repr(short.text))
request = session.submit("A long story:", max_tokens=60, temperature=0, ignore_eos=True)
try:
    await request
except rekindle.PromptTooLong as error:
    outgrown = str(error)
print(outgrown)

# %% [markdown]
# After the release, its pages are ordinary cached pages again, and both requests run:

# %%
history.release()
print(session)
print(repr((await session.generate(KEEPER, max_tokens=4, temperature=0)).text))
long = await session.generate("A long story:", max_tokens=60, temperature=0, ignore_eos=True)

# %%
assert "needs 3 pages to start, and prefixes that are held leave 2 of 16" in too_long
assert "to continue after its generated tokens" in outgrown
assert long.token_ids[:8] == short.token_ids
assert len(long.token_ids) == 60

# %% [markdown]
# ## Statistics that add up
#
# Each prompt token of each request that has started is counted once: as found on the device, in host memory or on disk,
# or as computed. Tokens that a preempted request computes again are counted separately.

# %%
rules.release()
counts = session.stats.scheduler
mixed = await session.generate([KEEPER, TOWN, RULES, "Nobody" + MARKET, KEEPER + " the", RULES + " Also"], max_tokens=3)
now = session.stats.scheduler
session.stats.scheduler

# %%
assert now.prompt_tokens == now.device_hit_tokens + now.host_hit_tokens + now.disk_hit_tokens + now.computed_tokens
assert now.prompt_tokens - counts.prompt_tokens == sum(answer.usage.prompt_tokens for answer in mixed)
assert now.device_hit_tokens - counts.device_hit_tokens == sum(answer.cached.device for answer in mixed)
assert now.host_hit_tokens - counts.host_hit_tokens == sum(answer.cached.host for answer in mixed)
assert now.free_pages == now.pages  # nobody runs and nothing is held: every page could be had
await session.close()

# %% [markdown]
# A page is free, or it belongs to one request, or it is in the tree, and never two of these at once. `Scheduler.check`
# asserts it, and the test suite calls that method after every message. The next tutorial is about what computes on
# these pages: compiled programs, and why there must be so few of them.
