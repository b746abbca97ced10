# %% [markdown]
# # 01 · First words
#
# This notebook opens a small language model and shows every way that Rekindle offers for getting text out of it. Run
# the cells from top to bottom. Nothing here needs a GPU. The model is SmolLM2-135M-Instruct; its 90 MB are downloaded
# once.
#
# Before you run a cell, you see the output that was stored with the notebook. Jupyter does not trust an output that was
# made elsewhere, so it shows stored pictures as text. To see the pictures, run the cells, or trust the notebook. In
# JupyterLab, that is the command *Trust Notebook* (*View*, *Activate Command Palette*). In a terminal, it is
# `jupyter trust 01_first_words.ipynb`. The other tutorials are trusted in the same way.

# %% [markdown]
# ## Open a model
#
# `open` reads the weights and prepares the compiled programs that run the model. Both take seconds, so `open` is
# awaited. The work happens on a thread of the engine, and the notebook stays responsive. A cell may `await` directly.
#
# The name of a model is enough: `await rekindle.open("smollm2-135m-instruct")`. The cell below also gives two of the
# many settings (`rekindle.core.config.Settings`), to keep this notebook quick: at most 4 requests run at once, and at
# most 256 tokens of their prompts are computed at once. Without `progress=False` you would see progress bars.

# %%
import rekindle

session = await rekindle.open("smollm2-135m-instruct", max_running=4, max_prefill_tokens=256, progress=False)

# %% [markdown]
# If a session is the last value of a cell, it shows what it is doing.

# %%
session

# %% [markdown]
# A *program* is a compiled step of the model, for one padded size of its input (a *bucket*). `open` returned as soon as
# the first request could be served. The engine compiles the other programs in the background and stores them on disk.
# Until it is done, cells run slower than they will later. The next session loads the programs from disk, even after a
# restart of the kernel. Tutorial 06 is about that.

# %% [markdown]
# ## Generate
#
# If the prompt is a string, the model continues it, token by token. A *token* is a piece of text from the model's
# vocabulary, such as a word, a part of a word, or a digit. `max_tokens` says after how many tokens to stop.

# %%
answer = await session.generate("The opposite of hot is", max_tokens=8)
answer

# %% [markdown]
# The result is a `Generation`. It is plain data, and the output above is made of its attributes.

# %%
print("text          ", repr(answer.text))
print("token_ids     ", answer.token_ids)
print("finish_reason ", answer.finish_reason)
print("usage         ", answer.usage)

# %% [markdown]
# The model computes with token ids. `session.encode` turns text into token ids, and `session.decode` turns them back
# into text.

# %%
prompt_ids = session.encode("The opposite of hot is")
print([session.decode([token]) for token in prompt_ids], "→", [session.decode([token]) for token in answer.token_ids])

# %% [markdown]
# ## Chat
#
# A model that was trained to answer expects its prompt in a certain form, which its *chat template* describes. If the
# prompt is a list of messages, it is put into that form. The model then ends its answer itself, with an *end token*.

# %%
capital = [{"role": "user", "content": "What is the capital of France?"}]
reply = await session.generate(capital)
reply

# %% [markdown]
# The question has 7 tokens, but the prompt has 37, because the template adds a system message and marks that say who
# speaks. `session.render` shows what the model reads:

# %%
print(session.render(capital))

# %% [markdown]
# ## Stream
#
# A model makes one token at a time, and you need not wait for the last one. `stream` yields pieces of text as they are
# made. Each piece is the text that its token completes, and it never ends in half a character.

# %%
haiku = [{"role": "user", "content": "Write a haiku about the sea."}]
pieces = []
async for piece in session.stream(haiku, max_tokens=48):
    pieces.append(piece)
    print(piece.text, end="")

# %% [markdown]
# If you only want to watch, use `show`. It runs this loop for you and draws the growing text into the output of the
# cell. At the end it leaves what `generate` would have shown. With ipykernel 7 it also has a button that cancels the
# request.

# %%
await session.show(haiku, max_tokens=48)

# %% [markdown]
# ## A conversation
#
# A session does not remember conversations. A chat is a list of messages that grows, and each turn sends all of it.
# `submit` returns a *handle*. You can stream from it, and await it for the whole result. Here `stop` ends each answer
# at its first line break, because a small model rambles.

# %%
messages = []
for question in ("What is a lighthouse for?", "Who lives in one?", "Write one sentence about such a person."):
    messages.append({"role": "user", "content": question})
    print("You:", question)
    request = session.submit(messages, max_tokens=100, stop="\n")
    async for piece in request:
        print(piece.text, end="")
    turn = await request
    messages.append({"role": "assistant", "content": turn.text})
    print(f"\n({turn.usage.prompt_tokens} prompt tokens, cached: {turn.cached})\n")

# %% [markdown]
# The prompt grows with each turn, but the *prefix cache* makes each turn cheap, because the tokens of earlier turns are
# found there (`cached`, in whole pages of 64 tokens) and only the rest is computed.

# %% [markdown]
# ## Many prompts at once
#
# A list of prompts gives a list of generations, in the same order. The prompts run side by side: one *tick* of the
# engine makes one token for each of them.

# %%
prompts = ["The opposite of hot is", "One, two, three, four,", "The harbour was", "import numpy"]
ticks = session.stats.scheduler.ticks
answers = await session.generate(prompts, max_tokens=12)
ticks = session.stats.scheduler.ticks - ticks
for prompt, each in zip(prompts, answers, strict=True):
    print(f"{prompt}|{each.text!r}")
print(f"{sum(each.usage.completion_tokens for each in answers)} tokens in {ticks} ticks")

# %% [markdown]
# Prompts of different lengths share ticks too, and so do requests that are submitted while others run. This changes no
# answer: the first prompt gets the same text here as it got alone. One after the other, the four would have taken at
# least 48 ticks.

# %% [markdown]
# ## Sampling
#
# For each next token, the model gives a probability to each of the 49,152 tokens of its vocabulary. By default the
# likeliest token is taken, unless the model's authors recommend something else (`session.sampling_defaults`). This is
# called *greedy*, and it always gives the same text. If `temperature` is above 0, the token is drawn at random. A
# higher temperature gives unlikely tokens a better chance. A `seed` makes a draw repeatable.

# %%
boat = [{"role": "user", "content": "Give me a name for a boat."}]
for seed in (1, 2, 3):
    drawn = await session.generate(boat, temperature=0.8, seed=seed, max_tokens=16)
    print(seed, repr(drawn.text))

# %% [markdown]
# `n=3` draws three texts from one prompt, side by side. The first is the one that the seed gives without `n`.

# %%
three = await session.generate(boat, temperature=0.8, seed=3, n=3, max_tokens=16)
for each in three:
    print(repr(each.text))

# %% [markdown]
# `rekindle.SamplingParams` describes all parameters, among them `top_p`, `top_k`, `min_p`, penalties, and
# banned and forced tokens. A seeded request draws the same tokens alone and in any batch, because its random numbers
# depend only on its seed and on the position of the token.

# %%
again, *others = await session.generate([boat, *prompts], temperature=0.8, seed=3, max_tokens=16)
again.token_ids == three[0].token_ids

# %% [markdown]
# ## How sure was it?
#
# `logprobs=3` asks for the probability of each token, and for the three likeliest tokens at its place. A notebook draws
# the result as a heat map: the deeper the shade, the less likely the token. Point at a token to see the numbers.

# %%
unsure = await session.generate(boat, temperature=1.0, seed=5, max_tokens=24, logprobs=3)
unsure

# %% [markdown]
# `logprob` is the natural logarithm of the probability that the model itself gives to a token, before temperature and
# all other parameters are applied. `rank` is the token's place among all tokens; greedy would have taken the token of
# rank 1.

# %%
import math

print("token            probability    rank   the likeliest there")
for token in unsure.logprobs[:8]:
    likeliest = ", ".join(f"{each.text!r} {math.exp(each.logprob):.0%}" for each in token.top)
    print(f"{token.text!r:<16} {math.exp(token.logprob):>10.1%} {token.rank:>8,}   {likeliest}")

# %% [markdown]
# ## When it ends
#
# A request ends at an end token, after `max_tokens` tokens, or at a *stop string* that you choose. A stop string is
# found in the text, however the model cuts it into tokens, and it is left out of `text`.

# %%
counted = await session.generate("One, two, three, four,", stop=["seven", "\n"], max_tokens=40)
counted

# %% [markdown]
# ## What it cost
#
# `timings` are in seconds since the request was submitted. The time to the first token has two parts: the wait in the
# queue, and the *prefill*, in which all tokens of the prompt go through the model together. After that, the *decode*
# makes one token after the other.
#
# For each token of the prompt, the model computes *keys and values* (tutorial 02). They stay in the prefix cache, in
# pages of 64 tokens. If another prompt begins the same, its keys and values are found there, and only those of the rest
# are computed. That helped the conversation above, and it helps all prompts about one document.

# %%
document = """The harbour of Lindvik has a lighthouse that was built in 1871. Its keeper, Ada Holm, wrote a log every
night. On the third of March 1904 she wrote that the lamp had gone out twice, and that a ship called the Marigold had
come in without a sound. The Marigold carried forty barrels of salt, two goats, and a piano that belonged to the priest.
Her captain, Jonas Reed, asked for water and a new rope, and paid with a silver watch. Ada kept the watch in a blue tin
on the shelf above the stove. When the lighthouse was closed in 1958, the tin was still there, and the watch was still
running. Today both are in the museum of Lindvik, beside the lamp and the last page of the log.
"""


def ask(question):
    return f"{document}\nQuestion: {question}\nAnswer:"


first = await session.generate(ask("What did the captain pay with?"), stop="\n", max_tokens=20)
second = await session.generate(ask("When was the lighthouse built?"), stop="\n", max_tokens=20)
for each in (first, second):
    print(
        f"{each.text!r}: {each.usage.prompt_tokens} prompt tokens, {each.cached_tokens} of them cached; "
        f"first token after {each.timings.first_token:.3f} s"
    )

# %% [markdown]
# `cached` says in which tier the cached tokens were found: on the device, in host memory, or on disk.

# %%
second.cached

# %% [markdown]
# A cached page is dropped when its room is needed. A prefix that must stay can be *held*: it is computed once, and you
# can continue it as often as you like. It is released at the end of the `async with`.

# %%
async with session.prefix(document) as doc:
    facts = await doc.generate(
        ["\nQuestion: What was the name of the ship?\nAnswer:", "\nQuestion: When was the lighthouse closed?\nAnswer:"],
        stop="\n",
        max_tokens=20,
    )
doc

# %%
for each in facts:
    print(repr(each.text), "cached:", each.cached)

# %% [markdown]
# The cache is a tree: prompts that begin the same share the pages of their beginning. Each row is a run of pages. Its
# letters say in which tiers they are, and its *hits* say how many requests found them.

# %%
session.cache.draw()

# %% [markdown]
# ## Submit, and change your mind
#
# `generate` waits for the result. `submit` returns its handle at once, and other cells can run meanwhile. Later, any
# cell can await the handle, stream it, or cancel it.

# %%
request = session.submit("The history of the lighthouse", max_tokens=8000, ignore_eos=True)
async for piece in session.stream("Meanwhile, in another request,", max_tokens=8):
    print(piece.text, end="")
request

# %%
request.cancel()
try:
    await request
except rekindle.RequestCancelled as error:
    print(f"RequestCancelled: {error}")
request

# %% [markdown]
# A request is also cancelled if you stop its cell with *interrupt kernel*, if you leave its stream by `break`, or if a
# timeout ends the wait. In each case nobody waits for the request any more. Only this one request is cancelled, and the
# session goes on.

# %%
async for piece in session.stream("Numbers from 1 to 1000: 1, 2, 3,", max_tokens=1000):
    if "9" in piece.text:
        break
after = await session.generate("The opposite of hot is", max_tokens=8)
after == answer

# %% [markdown]
# Two generations are equal if they say the same.

# %% [markdown]
# ## Close
#
# `session.stats` counts what a session has done. Each prompt token is counted once: as found in one of the three tiers,
# or as computed.

# %%
counts = session.stats.scheduler
print(f"{counts.ended} requests, {counts.ticks} ticks, {counts.generated_tokens} tokens generated")
hits = f"found on the device {counts.device_hit_tokens}"
print(f"prompt tokens: {counts.prompt_tokens}, computed {counts.computed_tokens}, {hits}")

# %% [markdown]
# `close` writes the cached pages to disk, stops the engine, and frees the memory. At the end of `async with
# rekindle.open(...) as session:` this happens by itself. If a timeout ends `close`, the engine stops too, but perhaps
# before all pages are written. In a script, use `rekindle.open_sync`, `session.generate_sync` and
# `session.stream_sync`. They do the same and block.

# %%
await session.close()
try:
    await session.generate("Anybody there?")
except rekindle.SessionClosed as error:
    print(f"SessionClosed: {error}")

# %% [markdown]
# Next: `02_one_token_at_a_time` does by hand what `generate` does.
