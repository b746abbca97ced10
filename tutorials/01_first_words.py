# %% [markdown]
# # 01 · First words
#
# This notebook opens a small language model and uses it in every way that Rekindle offers for getting text out of it.
# Run the cells from top to bottom. Nothing here needs a GPU: the model is SmolLM2-135M-Instruct, 90 MB, downloaded
# once.
#
# Each section ends with a cell of `assert`s, which check what the text says.

# %% [markdown]
# ## Open a model
#
# `open` reads the weights and prepares the programs that the model runs as. Both take seconds, so it is awaited: the
# work happens on a thread of the engine's own, and the notebook stays responsive. A cell may `await` directly.
#
# The name is enough: `await rekindle.open("smollm2-135m-instruct")`. Here are two of its many settings
# (`rekindle.config.Settings`), so that this notebook is quick: at most 4 requests run at once, and at most 256 tokens
# of their prompts are computed at once. Without `progress=False` there are bars to watch.

# %%
import rekindle

session = await rekindle.open("smollm2-135m-instruct", max_running=4, max_prefill_tokens=256, progress=False)

# %% [markdown]
# A session that is the last value of a cell shows what it is doing.

# %%
session

# %% [markdown]
# A *program* is a compiled step of the model, for one padded size of its input (a *bucket*). `open` returned as soon as
# the first request could be served. The engine compiles the other programs in the background, which makes the next
# cells slower than they will be, and stores them on disk. The next session loads them from there, also after a restart
# of the kernel: tutorial 06 is about that.

# %%
assert session.stats.programs >= 1
assert session.stats.scheduler.running == 0

# %% [markdown]
# ## Generate
#
# A string is a prompt as it stands, and the model continues it, token by token. A *token* is a piece of text from the
# model's vocabulary: a word, a part of one, a digit. `max_tokens` says when to stop.

# %%
answer = await session.generate("The opposite of hot is", max_tokens=8)
answer

# %% [markdown]
# What came back is a `Generation`. It is plain data; what is shown above is made of its attributes.

# %%
print("text          ", repr(answer.text))
print("token_ids     ", answer.token_ids)
print("finish_reason ", answer.finish_reason)
print("usage         ", answer.usage)

# %% [markdown]
# Token ids are what the model computes with. `session.encode` and `session.decode` translate.

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
# A model that was trained to answer expects its prompt in a certain form, its *chat template*. A list of messages is
# put into that form. The model then ends its answer itself, with an *end token*.

# %%
chat = [{"role": "user", "content": "What is the capital of France?"}]
reply = await session.generate(chat)
reply

# %% [markdown]
# The prompt has 37 tokens, though the question has 7: the template adds a system message of its own, and marks that say
# who speaks. Sessions keep no conversation. To go on, append the reply and the next question, and send all of it.

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
# A model makes one token at a time, and there is no need to wait for the last one. `stream` gives the pieces as they
# come. A piece has the text that its token completes; it never ends in half a character.

# %%
haiku = [{"role": "user", "content": "Write a haiku about the sea."}]
pieces = []
async for piece in session.stream(haiku, max_tokens=48):
    pieces.append(piece)
    print(piece.text, end="")

# %% [markdown]
# To only look at it, `show` does the loop: it draws the text into the output of the cell as it grows, and leaves what
# `generate` would have shown. With ipykernel 7 it has a button that cancels the request.

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
# Prompts of different lengths, and requests that are submitted while others run, share ticks in the same way. It
# changes no answer: the first prompt says the same here as alone.

# %%
assert answers[0].text.startswith(answer.text)
assert ticks < 2 * 12, "one after the other they would have taken at least 4 * 12"

# %% [markdown]
# ## Sampling
#
# For each next token the model gives a probability to all 49,152 tokens of its vocabulary. Unless the model's authors
# recommend otherwise (`session.sampling_defaults`), the likeliest one is taken: this is called *greedy*, and it always
# gives the same text. With `temperature` above 0 the token is drawn at random, and a higher temperature gives unlikely
# tokens more of a chance. A `seed` makes a draw repeatable.

# %%
boat = [{"role": "user", "content": "Give me a name for a boat."}]
for seed in (1, 2, 3):
    drawn = await session.generate(boat, temperature=0.8, seed=seed, max_tokens=16)
    print(seed, repr(drawn.text))

# %% [markdown]
# `n` gives several draws of one prompt, side by side. The first is the draw of the seed.

# %%
three = await session.generate(boat, temperature=0.8, seed=3, n=3, max_tokens=16)
for each in three:
    print(repr(each.text))

# %% [markdown]
# `rekindle.request.SamplingParams` says what else there is: `top_p`, `top_k`, `min_p`, penalties, banned and forced
# tokens. A seeded request draws the same tokens alone and in any batch, since its random numbers depend on its seed and
# the position of the token, and on nothing else.

# %%
assert three[0].token_ids == drawn.token_ids
assert len({each.token_ids for each in three}) == 3
again, *others = await session.generate([boat, *prompts], temperature=0.8, seed=3, max_tokens=16)
assert again.token_ids == drawn.token_ids, "the same in another batch"

# %% [markdown]
# ## How sure was it?
#
# `logprobs=3` asks for the probability of each token, and for the three likeliest ones at its place. In a notebook the
# result is drawn as a heat map: the deeper the shade, the less likely the token. Point at a token for the numbers.

# %%
drawn = await session.generate(boat, temperature=1.0, seed=5, max_tokens=24, logprobs=3)
drawn

# %% [markdown]
# `logprob` is the natural logarithm of a token's probability, by the model itself, before the temperature and all else.
# `rank` is the token's place among all tokens: 1 is the one that greedy would have taken.

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
# A request ends at an end token, at `max_tokens`, or at a text of yours. A stop string is found in the text, however
# the model cuts it into tokens, and it is left out of `text`.

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
# `timings` are seconds since the request was submitted. The time to the first token is the wait in the queue and the
# *prefill*, in which all tokens of the prompt go through the model together. Then comes one token after the other, the
# *decode*.
#
# What the model computed for the prompt's tokens, their *keys and values* (tutorial 02), stays in the *prefix cache*,
# in pages of 64 tokens. A prompt that begins the same finds them there and computes only the rest.

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
# `cached` says in which tier they were found: on the device, in host memory, or on disk.

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
# Cached pages make room when it is needed. A prefix that must stay is *held*: compute it once, and continue it as often
# as you like. Leaving the `async with` lets go of it.

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
# The cache is a tree: prompts that begin the same share the pages of their beginning. The bar in a box says how many
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
# `generate` waits. `submit` puts a request on its way and returns a handle at once; other cells can run meanwhile.
# Await the handle later, stream it, or cancel it, from any cell.

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
# The same happens to a request whose cell you stop with *interrupt kernel*, to a stream that is left by `break`, and
# when a timeout ends the wait: nobody waits for the request any more, so it is cancelled, and only it. The session goes
# on.

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
# What a session has done is counted in `session.stats`. Each prompt token is counted once, as found in one of the three
# tiers or as computed.

# %%
counts = session.stats.scheduler
print(f"{counts.ended} requests, {counts.ticks} ticks, {counts.generated_tokens} tokens generated")
hits = f"found on the device {counts.device_hit_tokens}"
print(f"prompt tokens: {counts.prompt_tokens}, computed {counts.computed_tokens}, {hits}")

# %% [markdown]
# `close` writes what is cached to disk, stops the engine, and frees the memory. `async with rekindle.open(...) as
# session:` does so by itself. If a timeout ends it, the engine stops too, but perhaps before all is written. In a
# script, `rekindle.open_sync`, `session.generate_sync` and `session.stream_sync` do the same and block.

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
