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
# Without an argument, it opens SmolLM2-135M-Instruct. The first argument is the name or path of another model, and the
# further ones are settings (`rekindle.Settings`). While you wait, progress bars show the work.

# %%
import rekindle

session = await rekindle.open()

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
# ## Chat
#
# `session.chat()` begins a conversation, and `show` says something in it. The answer grows in the output of the cell,
# beside a button that cancels it (with ipykernel 7 or newer).

# %%
await session.chat().show("What is a prime number? Answer in one sentence.")

# %% [markdown]
# A chat remembers what was said. `say` waits for the whole answer and returns it, for a cell or a program that goes on
# with it. The second and the third question make no sense without what came before:

# %%
chat = session.chat()
for question in (
    "What is the capital of France?",
    "What is it famous for?",
    "And what is Rome famous for?",
):
    turn = await chat.say(question)
    print("You:  ", question)
    print("Model:", turn.text)
    print(f"       ({turn.usage.prompt_tokens} prompt tokens, cached: {turn.cached})\n")

# %% [markdown]
# The model itself remembers nothing: each turn sends the whole conversation, so the prompt grows. But its beginning was
# computed in the turn before. The *prefix cache* keeps it, in whole pages of 64 tokens (`cached`), and only the rest is
# computed.
#
# A chat is a list of messages with a little help. `undo` takes a turn back, `edit` changes what was said, and `fork`
# begins a second conversation from the same turns, which share the cached pages. A system message says how the model
# should answer, and `temperature=0` makes it take its likeliest words.

# %%
other = chat.fork()
other.undo()
await other.say("Which museum is there?")
other

# %%
brief = session.chat(system="Answer in one sentence.", temperature=0)
for question in ("What is the capital of Norway?", "And of Sweden?", "And of Finland?"):
    print(await brief.say(question))

# %% [markdown]
# To talk without writing cells, end a cell with `chat.widget()`. It shows the conversation with a box to type in, and a
# bar for the part of each prompt that came from the cache. In a terminal, `rekindle chat` does the same.

# %% [markdown]
# Meanwhile, most programs have been compiled. You need not wait for the others. This notebook does, so that the times
# below are those of a session at rest:

# %%
await session.precompiled()
session

# %% [markdown]
# ## One prompt
#
# `generate` answers one prompt and remembers nothing. A list of messages is a conversation, here with one message.

# %%
capital = [{"role": "user", "content": "What is the capital of France?"}]
reply = await session.generate(capital)
reply

# %% [markdown]
# The result is a `Generation`. It is plain data, and the output above is made of its attributes. A *token* is a piece
# of text from the model's vocabulary, such as a word, a part of a word, or a digit.

# %%
print("text          ", repr(reply.text))
print("token_ids     ", reply.token_ids)
print("finish_reason ", reply.finish_reason)
print("usage         ", reply.usage)

# %% [markdown]
# The question has 7 tokens, but the prompt has 37. A model that was trained to answer expects its prompt in a certain
# form, which its *chat template* describes: it adds a system message and marks that say who speaks. `session.render`
# shows what the model reads. The model ends its answer itself, with an *end token*.

# %%
print(session.render(capital))

# %% [markdown]
# If the prompt is a string, no template is applied. The model continues the text, token by token, and `max_tokens` says
# after how many tokens to stop.

# %%
answer = await session.generate("Once upon a time", max_tokens=20)
answer

# %% [markdown]
# The model computes with token ids. `session.encode` turns text into token ids, and `session.decode` turns them back
# into text.

# %%
prompt_ids = session.encode("Once upon a time")
print([session.decode([token]) for token in prompt_ids], "→", [session.decode([token]) for token in answer.token_ids])

# %% [markdown]
# ## Stream
#
# A model makes one token at a time, and you need not wait for the last one. `stream` yields pieces of text as they are
# made. Each piece is the text that its tokens complete, one or a few, and it never ends in half a character.

# %%
sea = [{"role": "user", "content": "Write two sentences about the sea."}]
pieces = []
async for piece in session.stream(sea, max_tokens=64):
    pieces.append(piece)
    print(piece.text, end="")

# %% [markdown]
# If you only want to watch, use `session.show`. It runs this loop for you and draws the growing text, as `chat.show`
# did above.

# %% [markdown]
# ## Many prompts at once
#
# A list of prompts gives a list of generations, in the same order, which a cell shows as a table. The prompts run side
# by side: one *tick* of the engine makes one token, or a few, for each of them.

# %%
prompts = ["Once upon a time", "One, two, three, four,", "The sea was", "The sun rises in the"]
ticks = session.stats.scheduler.ticks
answers = await session.generate(prompts, max_tokens=20)
ticks = session.stats.scheduler.ticks - ticks
answers

# %%
print(f"{sum(each.usage.completion_tokens for each in answers)} tokens in {ticks} ticks")

# %% [markdown]
# Prompts of different lengths share ticks too, and so do requests that are submitted while others run. This changes no
# answer: the first prompt gets the same text here as it got alone. One after the other, the four would have taken at
# least 80 steps of the model.

# %% [markdown]
# ## Sampling
#
# For each next token, the model gives a probability to each of the 49,152 tokens of its vocabulary. By default the
# likeliest token is taken, unless the model's authors recommend something else (`session.sampling_defaults`). This is
# called *greedy*, and it always gives the same text. If `temperature` is above 0, the token is drawn at random. A
# higher temperature gives unlikely tokens a better chance. A `seed` makes a draw repeatable.

# %%
line = [{"role": "user", "content": "Write one sentence about the sea."}]
for seed in (1, 2, 3):
    drawn = await session.generate(line, temperature=0.8, seed=seed, max_tokens=50)
    print(seed, drawn.text)

# %% [markdown]
# `n=3` draws three texts from one prompt, side by side. The first is the one that the seed gives without `n`.

# %%
three = await session.generate(line, temperature=0.8, seed=3, n=3, max_tokens=50)
three

# %% [markdown]
# `rekindle.SamplingParams` describes all parameters, among them `top_p`, `top_k`, `min_p`, penalties, and
# banned and forced tokens. A seeded request draws the same tokens alone and in any batch, because its random numbers
# depend only on its seed and on the position of the token.

# %%
again, *others = await session.generate([line, *prompts], temperature=0.8, seed=3, max_tokens=50)
again

# %%
again.token_ids == three[0].token_ids

# %% [markdown]
# ## How sure was it?
#
# `logprobs=3` asks for the probability of each token, and for the three likeliest tokens at its place. A notebook draws
# the result as a heat map: the deeper the shade, the less likely the token. Point at a token to see the numbers.

# %%
unsure = await session.generate(line, temperature=1.0, seed=1, max_tokens=32, logprobs=3)
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
# are computed. That helped the chat above, and it helps all prompts about one document.

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
async for piece in session.stream(capital):
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
after = await session.generate("Once upon a time", max_tokens=20)
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
