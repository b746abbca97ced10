# %% [markdown]
# # 01 · First words
#
# This notebook opens a small language model and shows every way that Rekindle offers for getting text out of it. Run
# the cells from top to bottom. Nothing here needs a GPU. The model is SmolLM2-135M-Instruct; its 90 MB are downloaded
# once.
#
# Each section ends with a cell of `assert`s. They check what the text says.

# %% [markdown]
# ## Open a model
#
# `open` reads the weights and prepares the compiled programs that run the model. Both take seconds, so `open` is
# awaited. The work happens on a thread of the engine, and the notebook stays responsive. A cell may `await` directly.
#
# The name of a model is enough: `await rekindle.open("smollm2-135m-instruct")`. The cell below also gives two of the
# many settings (`rekindle.config.Settings`), to keep this notebook quick: at most 4 requests run at once, and at most
# 256 tokens of their prompts are computed at once. Without `progress=False` you would see progress bars.

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

# %%
assert session.stats.programs >= 1
assert session.stats.scheduler.running == 0

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

# %%
assert answer.finish_reason == "length", "it ended because max_tokens was reached"
assert len(answer.token_ids) == answer.usage.completion_tokens == 8
assert answer.usage.prompt_tokens == len(prompt_ids)
assert session.decode(answer.token_ids) == answer.text

# %% [markdown]
# ## Chat
#
# A model that was trained to answer expects its prompt in a certain form, which its *chat template* describes. If the
# prompt is a list of messages, it is put into that form. The model then ends its answer itself, with an *end token*.

# %%
chat = [{"role": "user", "content": "What is the capital of France?"}]
reply = await session.generate(chat)
reply

# %% [markdown]
# The question has 7 tokens, but the prompt has 37, because the template adds a system message and marks that say who
# speaks. A session does not remember conversations. To continue one, append the reply and the next question, and send
# all of it.

# %%
chat += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And of Italy?"}]
second = await session.generate(chat)
print(second)

# %%
assert reply.finish_reason == "stop"
assert session.decode([reply.stopped_by]) == "<|im_end|>"
assert "Paris" in reply.text
assert "Rome" in second.text
assert (len(session.encode("What is the capital of France?")), reply.usage.prompt_tokens) == (7, 37)

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

# %%
whole = await session.generate(haiku, max_tokens=48)
assert "".join(piece.text for piece in pieces) == whole.text
assert sum(len(piece.token_ids) for piece in pieces) == whole.usage.completion_tokens
assert len(pieces) > 20, "it came in many pieces"

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
# answer: the first prompt gets the same text here as it got alone.

# %%
assert answers[0].text.startswith(answer.text)
assert ticks < 2 * 12, "one after the other they would have taken at least 4 * 12"

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
# `rekindle.request.SamplingParams` describes all parameters, among them `top_p`, `top_k`, `min_p`, penalties, and
# banned and forced tokens. A seeded request draws the same tokens alone and in any batch, because its random numbers
# depend only on its seed and on the position of the token.

# %%
assert three[0].token_ids == drawn.token_ids
assert len({each.token_ids for each in three}) == 3
again, *others = await session.generate([boat, *prompts], temperature=0.8, seed=3, max_tokens=16)
assert again.token_ids == drawn.token_ids, "the same in another batch"

# %% [markdown]
# ## How sure was it?
#
# `logprobs=3` asks for the probability of each token, and for the three likeliest tokens at its place. A notebook draws
# the result as a heat map: the deeper the shade, the less likely the token. Point at a token to see the numbers.

# %%
drawn = await session.generate(boat, temperature=1.0, seed=5, max_tokens=24, logprobs=3)
drawn

# %% [markdown]
# `logprob` is the natural logarithm of the probability that the model itself gives to a token, before temperature and
# all other parameters are applied. `rank` is the token's place among all tokens; greedy would have taken the token of
# rank 1.

# %%
import math

print("token            probability    rank   the likeliest there")
for token in drawn.logprobs[:8]:
    likeliest = ", ".join(f"{each.text!r} {math.exp(each.logprob):.0%}" for each in token.top)
    print(f"{token.text!r:<16} {math.exp(token.logprob):>10.1%} {token.rank:>8,}   {likeliest}")

# %%
assert [token.token_id for token in drawn.logprobs] == list(drawn.token_ids)
assert any(token.rank > 1 for token in drawn.logprobs), "a draw does not always take the likeliest"
for token in drawn.logprobs:
    assert [each.rank for each in token.top] == [1, 2, 3]
    assert sum(math.exp(each.logprob) for each in token.top) <= 1 + 1e-5
greedy = await session.generate(boat, max_tokens=8, logprobs=0)
assert {token.rank for token in greedy.logprobs} == {1}

# %% [markdown]
# ## When it ends
#
# A request ends at an end token, after `max_tokens` tokens, or at a *stop string* that you choose. A stop string is
# found in the text, however the model cuts it into tokens, and it is left out of `text`.

# %%
counted = await session.generate("One, two, three, four,", stop=["seven", "\n"], max_tokens=40)
counted

# %%
assert (counted.finish_reason, counted.stopped_by) == ("stop", "seven")
assert "seven" not in counted.text
assert "six" in counted.text

# %% [markdown]
# ## What it cost
#
# `timings` are in seconds since the request was submitted. The time to the first token has two parts: the wait in the
# queue, and the *prefill*, in which all tokens of the prompt go through the model together. After that, the *decode*
# makes one token after the other.
#
# For each token of the prompt, the model computes *keys and values* (tutorial 02). They stay in the *prefix cache*, in
# pages of 64 tokens. If another prompt begins the same, its keys and values are found there, and only those of the rest
# are computed.

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

# %%
assert first.cached.device == 0  # on disk there may be some, of an earlier run of this notebook
assert second.cached_tokens == second.cached.device == 128
assert second.usage.prompt_tokens // 64 * 64 >= 128
assert "watch" in first.text
assert "1871" in second.text
assert second.timings.queued <= second.timings.first_token <= second.timings.total

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
assert all(each.cached.device == doc.tokens // 64 * 64 for each in facts), "its whole pages"
assert "Marigold" in facts[0].text
assert "1958" in facts[1].text

# %% [markdown]
# The cache is a tree: prompts that begin the same share the pages of their beginning. The bar in a box shows how many
# requests found its pages.

# %%
session.cache.draw()

# %%
paths = [path for path in session.cache.hottest if path.text.startswith("The harbour of Lindvik")]
assert len(paths) == 4, "one for each question"
assert len({path.tokens[:128] for path in paths}) == 1, "which share their first two pages"
assert all(path.hits >= 4 for path in paths), "found by all questions but the first, and by the held prefix"
assert not any(path.held_pages for path in paths), "the prefix has been let go"

# %% [markdown]
# ## Submit, and change your mind
#
# `generate` waits for the result. `submit` returns a handle at once, and other cells can run meanwhile. Later, any cell
# can await the handle, stream it, or cancel it.

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

# %%
assert request.done
assert request.generation is None
assert after == answer, "two generations are equal if they say the same"

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

# %%
found = counts.device_hit_tokens + counts.host_hit_tokens + counts.disk_hit_tokens
assert counts.prompt_tokens == counts.computed_tokens + found
assert isinstance(rekindle.SessionClosed("closed"), rekindle.RekindleError), "all errors of Rekindle are of one class"

# %% [markdown]
# Next: `02_one_token_at_a_time` does by hand what `generate` does.
