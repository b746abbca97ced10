# %% [markdown]
# # 02 · One token at a time
#
# `session.generate` turns a prompt into text. This notebook does the same by hand: from text to token ids, through the
# model to probabilities, from probabilities to the next token, and again. Then it asks which of these computations are
# repeated, and keeps their results in pages: the *KV cache*. At the end, a session has to give the same tokens.
#
# The model, the operations on pages, and the choice of tokens are not copies made for teaching. They are the functions
# that every session runs.

# %%
import time
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pictures  # of these tutorials, beside this notebook
from flax import nnx

import rekindle
from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.mixing import LayerMemory
from rekindle.formats.checkpoints.open import open_checkpoint

# %% [markdown]
# ## From text to token ids
#
# A model is kept in a *checkpoint*: its numbers, its tokenizer, and its shape. The weights stay on disk until they are
# needed.

# %%
checkpoint = open_checkpoint("smollm2-135m-instruct")
config, tokenizer = checkpoint.config, checkpoint.tokenizer
attention = config.layers[0].attention  # of every layer, in this model
shape = {
    "layers": config.num_layers,
    "hidden size": config.hidden_size,
    "heads": attention.heads,
    "heads of keys and values": attention.kv_heads,
    "numbers of a head": attention.head_dim,
    "feed-forward width": config.layers[0].feed_forward.width,
    "vocabulary": config.vocab_size,
}
pictures.table([(name, f"{size:,}") for name, size in shape.items()])

# %% [markdown]
# The tokenizer cuts a text into pieces that are in the vocabulary. The id of a token is its place there.

# %%
prompt = tokenizer.encode("The opposite of hot is cold. The opposite of up is down. The opposite of left is")
print(len(prompt), "tokens:", " ".join(f"{token}:{tokenizer.decode([token])!r}" for token in prompt))

# %%
assert len(prompt) == 19
assert tokenizer.decode(prompt) == "The opposite of hot is cold. The opposite of up is down. The opposite of left is"
assert max(prompt) < config.vocab_size

# %% [markdown]
# ## One forward pass
#
# `load_decoder` reads the weights into a `Decoder`, which is a flax `nnx` module. All model families that Rekindle
# serves use this one module, with other numbers.

# %%
decoder = load_decoder(config, checkpoint.tensors, jnp.dtype("float32"))
parameters = sum(weight.size for weight in jax.tree.leaves(nnx.state(decoder)))
print(f"{parameters:,} parameters, {4 * parameters / 1e6:.0f} MB in float32")

# %% [markdown]
# A token enters as its row of the embedding matrix: 576 numbers. Thirty layers change that row. In each layer a small
# network, the *MLP*, works on one token by itself. Only *attention* lets a token see others. Each token makes a
# *query*, a *key* and a *value*. It then takes the mean of its own value and those before it, weighted by how well
# their keys fit its query.
#
# The decoder leaves attention to its caller, as the method `attend(q, kv, pages, how)` of a *mixer*, because the caller
# decides how keys and values are kept. Here is the simplest such method. It keeps nothing, and returns `pages` as they
# came. `how` has what differs between layers of some models; here it is only the scale of the scores.


# %%
def attend_all(q, kv, pages, how):
    """Attend causally among these tokens: q is (token, heads, head_dim), kv is (token, 2, kv_heads, head_dim)."""
    k, v = jnp.repeat(kv, q.shape[1] // kv.shape[2], axis=2).swapaxes(0, 1)  # three heads share one
    scores = jnp.einsum("qhd,khd->hqk", q, k) * how.scale
    places = jnp.arange(len(q))
    seen = places[None, :] <= places[:, None]  # (query, key): a query does not see what comes later
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,khd->qhd", weights, v), pages


mixer = SimpleNamespace(attend=attend_all)
nothing = LayerMemory((None,) * config.num_layers)
hidden, _ = decoder(jnp.array(prompt), jnp.arange(len(prompt)), nothing, mixer)
print("tokens", (len(prompt),), "→ hidden", hidden.shape)

# %% [markdown]
# Every token of the prompt went through in one call. Each came out as 576 numbers that say what may follow it.

# %%
assert hidden.shape == (19, config.hidden_size)
assert parameters == 134_515_008

# %% [markdown]
# A token does not see what comes later, and this can be measured. Another last token changes nothing before it:

# %%
changed, _ = decoder(jnp.array([*prompt[:-1], 42]), jnp.arange(len(prompt)), nothing, mixer)
difference = np.abs(np.asarray(hidden - changed)).max(axis=1)
print("largest change of the last two places:", difference[-2:])
assert difference[:-1].max() < 1e-4 < difference[-1]

# %% [markdown]
# ## From logits to a token
#
# `decoder.logits` compares a hidden row with the embedding of every token, and gives each token one number, its
# *logit*. Softmax turns logits into probabilities. Only the last row is needed, because it says what follows the
# prompt.

# %%
logits = decoder.logits(hidden[-1:])[0]
probabilities = jax.nn.softmax(logits)


def likeliest(probabilities, count=5):
    return [(int(token), float(probabilities[token])) for token in jnp.argsort(-probabilities)[:count]]


pictures.table(
    [(repr(tokenizer.decode([token])), f"{share:.2%}") for token, share in likeliest(probabilities)],
    head=("next token", "probability"),
)

# %% [markdown]
# To take the likeliest token is called *greedy*. This is a whole step: tokens go in, and one token comes out. To go on,
# append that token and do the same again.
#
# JAX compiles a function for each shape that it meets. A sequence that grows by one token would need a compilation for
# each of them. Instead the tokens are padded to 32 places. A token cannot see what comes after it, so the padding
# changes nothing. A session pads the inputs of all its compiled steps in this way, to one of a few *buckets*.

# %%
graph, weights = nnx.split(decoder)
PADDED = 32


@jax.jit
def recompute(weights, tokens, last):
    """Return the logits (vocab_size,) after place `last` of tokens (PADDED,); nothing is kept between calls."""
    decoder = nnx.merge(graph, weights)
    hidden, _ = decoder(tokens, jnp.arange(len(tokens)), nothing, mixer)
    return decoder.logits(hidden[last][None])[0]


def next_greedy(tokens):
    padded = jnp.zeros(PADDED, jnp.int32).at[: len(tokens)].set(jnp.array(tokens))
    return int(recompute(weights, padded, len(tokens) - 1).argmax())


tokens = list(prompt)
for _ in range(12):
    tokens.append(next_greedy(tokens))
by_hand = tokens[len(prompt) :]
print(repr(tokenizer.decode(by_hand)))

# %%
assert by_hand[0] == int(logits.argmax())
assert tokenizer.decode(by_hand).startswith(" right.")

# %% [markdown]
# ## Draws
#
# Greedy takes no risk and often repeats itself. To draw a token at random instead, divide the logits by a *temperature*
# and draw by the probabilities that result. The text so far ends in "The opposite of", and many words may follow.

# %%
opposite = prompt + by_hand[:5]
print(repr(tokenizer.decode(opposite[-4:])))
padded = jnp.zeros(PADDED, jnp.int32).at[: len(opposite)].set(jnp.array(opposite))
logits = recompute(weights, padded, len(opposite) - 1)
TEMPERATURES = (0.5, 1.0, 2.0)
shares = {temperature: jax.nn.softmax(logits / temperature) for temperature in TEMPERATURES}
rows = [
    (repr(tokenizer.decode([token])), *(f"{float(shares[t][token]):.1%}" for t in TEMPERATURES))
    for token, _ in likeliest(shares[1.0], 6)
]
pictures.table(rows, head=("next token", *(f"temperature {t}" for t in TEMPERATURES)))

# %% [markdown]
# The step's `sample` chooses the next token for all rows of a batch in one call, whether they are greedy or drawn. It
# takes the sampling parameters as packed rows, because on the device a request is a row of an array. The `Adjustments`
# hold penalties and bans; there are none here.
#
# Its random numbers are a function of the request's seed and of the position that the new token will have. So a seeded
# request draws the same token in any batch. The 400 requests below differ only in their seeds.

# %%
from rekindle.core.device.packing import pack_sampling
from rekindle.core.device.sampling.adjustments import Adjustments
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.request.request import Request

sample = jax.jit(partial(sample, max_logprobs=0))


def drawn(logits, tokens, seeds, temperature):
    """Draw the token after `tokens` from logits (vocab_size,), once for each seed: (seeds,)."""
    params = [rekindle.SamplingParams(temperature=temperature, seed=seed) for seed in seeds]
    requests = [Request(0, tuple(tokens), each, end_ids=frozenset(), capacity=64) for each in params]
    rows = SamplingRows.unpack(jnp.stack([jnp.asarray(pack_sampling(request)) for request in requests]))
    many = jnp.broadcast_to(logits, (len(seeds), len(logits)))
    positions = jnp.full(len(seeds), len(tokens), jnp.int32)
    none = Adjustments.empty(1, len(logits))
    tokens, _ = sample(many.T, rows, positions, none, jnp.zeros(len(seeds), jnp.int32))
    return np.asarray(tokens)


draws = np.concatenate([drawn(logits, opposite, range(start, start + 40), 1.0) for start in range(0, 400, 40)])
alone = drawn(logits, opposite, [7], 1.0)
print(f"{len(set(draws.tolist()))} different tokens in {len(draws)} draws; seed 7 alone: {tokenizer.decode(alone)!r}")

# %%
rows = [
    (repr(tokenizer.decode([token])), share, float((draws == token).mean()))
    for token, share in likeliest(shares[1.0], 8)
]
pictures.bars(
    "how often a token was drawn, as a bar, and the model's probability, as a line",
    [(name, measured, f"{share:.1%}, drawn {measured:.1%}") for name, share, measured in rows],
    expected=[share for _, share, _ in rows],
)

# %%
assert draws[7] == alone[0], "the same alone as among 39 others"
for _, share, measured in rows:
    assert abs(share - measured) < 5 * (share * (1 - share) / len(draws)) ** 0.5, "within five standard deviations"
assert (drawn(logits, opposite, range(4), 0.0) == int(logits.argmax())).all(), "temperature 0 is greedy"

# %% [markdown]
# ## What is computed twice
#
# The loop above ran the whole sequence through the model for each new token. Most of that had been computed before. A
# token does not see what comes later, so its keys and values do not change when the sequence grows. The next cell
# compares those of the first and of the last layer, for 19 tokens and for 20.


# %%
def keys_and_values(tokens):
    """Return the keys and values of every layer, each (token, 2, kv_heads, head_dim)."""
    kept = []

    def attend(q, kv, pages, how):
        kept.append(kv)
        return attend_all(q, kv, pages, how)

    decoder(jnp.array(tokens), jnp.arange(len(tokens)), nothing, SimpleNamespace(attend=attend))
    return kept


shorter, longer = keys_and_values(prompt), keys_and_values(prompt + by_hand[:1])
for layer in (0, config.num_layers - 1):
    change = jnp.abs(longer[layer][: len(prompt)] - shorter[layer]).max()
    size = jnp.abs(shorter[layer]).max()
    print(f"layer {layer:2}: numbers up to {size:.1f}, changed by at most {change:.1e} (rounding)")

# %% [markdown]
# And nothing else of an earlier token is ever needed, because attention is the only place where tokens meet. So we can
# keep the keys and values, and run one token at a time.

# %%
for layer in range(config.num_layers):
    assert jnp.allclose(longer[layer][: len(prompt)], shorter[layer], atol=1e-3, rtol=1e-3)
kv_bytes = sum(layer.nbytes for layer in shorter) // len(prompt)
print(f"what one token leaves behind: {kv_bytes:,} bytes")
assert kv_bytes == 30 * 2 * 3 * 64 * 4, "layers, key and value, kv_heads, head_dim, bytes of a float32"

# %% [markdown]
# ## Pages
#
# Where should they be kept? Nobody knows how long an answer will be, and memory for the longest possible answer would
# mostly stay empty. So memory is given out in *pages*, of 16 tokens here. A *pool* has many pages. A request has a
# *page table*, which lists its pages in the order of its tokens. The pages may lie anywhere in the pool, as the pages
# of a process may lie anywhere in memory.
#
# `empty_pages` makes the pool, one array for each layer, of shape (pages, 2, kv_heads, page_size, head_dim). The keys
# and the values of a page lie side by side. Our request gets the pages 5, 2 and 6. Page 0 is the *null page*, because
# padding has to be written somewhere too.

# %%
from rekindle.core.device.state import empty_pages
from rekindle_kernels import api as kernels

PAGE = 16
page_table = jnp.array([5, 2, 6])
pool = empty_pages(config, num_pages=8, page_size=PAGE, dtype=jnp.dtype("float32"), implementation="reference")
print(len(pool), "layers, each", pool[0].shape)

# %% [markdown]
# Two operations of `rekindle_kernels` work on pages. `write` puts keys and values into their places. `attend_blocks` is
# attention for whole blocks of prompt tokens over the pages of their sequence: each token sees what is in the pages up
# to itself. `implementation="reference"` asks for the definition in plain JAX, a few lines in `reference.py`. Other
# implementations are faster and must agree with it; tutorial 07 is about them.
#
# The prompt of 19 tokens takes two blocks of 16. Something is written to the places behind its end too. No token sees
# it, and the next tokens will overwrite it.


# %%
def attend_prompt(page_table, blocks, implementation):
    """Make the `attend` for a prompt of so many blocks, which begins with position 0."""
    starts = jnp.arange(blocks) * PAGE

    def attend(q, kv, pages, how):
        kv = jnp.moveaxis(
            kv.reshape(blocks, PAGE, *kv.shape[1:]), 1, 3
        )  # (blocks, 2, kv_heads, tokens, head_dim), as it lies in a page
        pages = kernels.write(pages, kv, page_table[starts // PAGE], starts % PAGE, implementation=implementation)
        out = kernels.attend_blocks(
            q.reshape(blocks, PAGE, *q.shape[1:]),
            pages,
            page_table[None],  # there is one sequence,
            jnp.zeros(blocks, jnp.int32),  # and all blocks belong to it
            starts,
            scale=how.scale,
            implementation=implementation,
        )
        return out.reshape(q.shape), pages

    return attend


@partial(jax.jit, static_argnames="implementation")
def prefill(weights, tokens, last, pool, page_table, implementation="reference"):
    """Return the logits after place `last` of whole blocks of tokens, and the pool with their keys and values."""
    decoder = nnx.merge(graph, weights)
    mixer = SimpleNamespace(attend=attend_prompt(page_table, len(tokens) // PAGE, implementation))
    hidden, memory = decoder(tokens, jnp.arange(len(tokens)), LayerMemory(pool), mixer)
    return decoder.logits(hidden[last][None])[0], memory.pages


padded = jnp.zeros(32, jnp.int32).at[: len(prompt)].set(jnp.array(prompt))
logits, pool = prefill(weights, padded, len(prompt) - 1, pool, page_table)
print("the next token:", repr(tokenizer.decode([int(logits.argmax())])))


# %%
def draw_pool(pool, tokens):
    """Draw a row for each page of the first layer, with a box for each place."""
    owned = {int(page): place * PAGE for place, page in enumerate(page_table)}
    filled = np.asarray(jnp.abs(pool[0]).sum((1, 2, 4)) > 0)  # (pages, page_size)
    rows = []
    for page, places in enumerate(filled):
        begin = owned.get(page)
        owner = "null page" if page == 0 else "free" if begin is None else f"positions {begin} to {begin + PAGE - 1}"
        count = 0 if begin is None else max(0, tokens - begin)
        kinds = "".join(("t" if place < count else "p") if written else "." for place, written in enumerate(places))
        rows.append((f"page {page}", kinds, owner))
    return pictures.boxes("t token, p padding, . empty", rows, {"t": pictures.BLUE, "p": pictures.GREY})


draw_pool(pool, len(prompt))

# %% [markdown]
# Tokens of the request are blue, and padding is grey. Where the picture is shown as text, they are `t` and `p`. Page 5
# is full. Page 2 has the last three tokens, followed by what the padding left.

# %%
assert int(logits.argmax()) == by_hand[0], "the same token as without pages"
stored = jnp.concatenate([pool[-1][page].transpose(2, 0, 1, 3) for page in (5, 2)])[: len(prompt)]
assert jnp.allclose(stored, shorter[-1], atol=1e-3, rtol=1e-3), "the keys and values that we have seen above"
assert not jnp.any(pool[0][jnp.array([0, 1, 3, 4, 6, 7])]), "no other page was touched"

# %% [markdown]
# ## One token
#
# Now a new token goes through the model alone. Its keys and values are written to the place of its position: page
# `page_table[position // 16]`, place `position % 16`. `attend_rows` lets its one query see everything in the request's
# pages, itself included.
#
# A real step has many such rows, one for each running request. It is padded as well: rows without a request write to
# the null page and see nothing. Here are four rows, and three of them are padding.

# %%
ROWS = 4


def run_rows(decoder, tokens, positions, ours, pool, page_table, implementation):
    """Return the hidden rows of tokens at these positions, and the pool with their keys and values.

    All arguments with a value for each row are (ROWS,); `ours` is True for a row of the request, False for padding.
    """
    page = jnp.where(ours, page_table[positions // PAGE], 0)  # the null page
    visible = jnp.where(ours, positions + 1, 0)  # how many positions a row sees
    tables = jnp.broadcast_to(page_table, (ROWS, len(page_table)))
    named = {"scale": attention.scale, "implementation": implementation}

    def attend(q, kv, pages, how):
        kv = kv[:, :, :, None]  # a block of one token each
        pages = kernels.write(pages, kv, page, positions % PAGE, implementation=implementation)
        return kernels.attend_rows(q, pages, tables, visible, **named), pages

    hidden, memory = decoder(tokens, positions, LayerMemory(pool), SimpleNamespace(attend=attend))
    return hidden, memory.pages


@partial(jax.jit, static_argnames="implementation")
def decode(weights, token, position, pool, page_table, implementation="reference"):
    """Return the logits after one token at this position, and the pool with its key and value."""
    decoder = nnx.merge(graph, weights)
    ours = jnp.arange(ROWS) == 0
    tokens, positions = jnp.where(ours, token, 0), jnp.where(ours, position, 0)
    hidden, pool = run_rows(decoder, tokens, positions, ours, pool, page_table, implementation)
    return decoder.logits(hidden[:1])[0], pool


paged, largest = [], 0.0
for step in range(12):
    paged.append(int(logits.argmax()))
    position = len(prompt) + step
    logits, pool = decode(weights, paged[-1], position, pool, page_table)
    whole = jnp.zeros(PADDED, jnp.int32).at[: position + 1].set(jnp.array(prompt + paged))
    largest = max(largest, float(jnp.abs(logits - recompute(weights, whole, position)).max()))
print(repr(tokenizer.decode(paged)))
print(f"logits up to {jnp.abs(logits).max():.0f}, apart by at most {largest:.1e} from those of the whole sequence")
draw_pool(pool, len(prompt) + 12)

# %% [markdown]
# The second page filled up, and the tokens took the places of the padding. The null page has what the three padding
# rows wrote, and nobody reads it.

# %%
assert paged == by_hand
assert largest < 1e-2
assert jnp.any(pool[0][0])
assert not jnp.any(pool[0][jnp.array([1, 3, 4, 7])])

# %% [markdown]
# ## How much less work?
#
# Let the sequence have 256 tokens. The compiler counts the operations of a compiled program, and the clock says how
# long they take. Attention over pages uses `"xla"` here, the portable implementation, whose operations the compiler
# knows. Sessions on a CPU run `"cpu"`, which is written in C++.

# %%
LENGTH = 256
long, last = jnp.array((prompt * 14)[:LENGTH]), LENGTH - 1
long_table = jnp.arange(1, 1 + LENGTH // PAGE)
room = empty_pages(config, 1 + LENGTH // PAGE, PAGE, jnp.dtype("float32"), "xla")
_, room = prefill(weights, long, last, room, long_table, "xla")
everything = recompute.lower(weights, long, last).compile()
one = decode.lower(weights, long[-1], last, room, long_table, "xla").compile()


def seconds(run):
    """Return the best time of three runs, after one run to warm up."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times[1:])


slow = seconds(lambda: everything(weights, long, last))
fast = seconds(lambda: one(weights, long[-1], last, room, long_table))
operations = [program.cost_analysis()["flops"] for program in (everything, one)]
table = [
    ("all 256 tokens again", f"{operations[0] / 1e9:.2f}", f"{1e3 * slow:.0f}"),
    (
        "the new token, the others from pages (and three padding rows)",
        f"{operations[1] / 1e9:.2f}",
        f"{1e3 * fast:.0f}",
    ),
    ("ratio", f"{operations[0] / operations[1]:.0f}", f"{slow / fast:.0f}"),
]
pictures.table(table, head=("", "billion operations", "milliseconds"))

# %% [markdown]
# The number of operations falls far more than the time. A step for one token has to read all 538 MB of weights from
# memory, and computes little with each number. That is why a session runs many requests side by side: they share that
# reading. For the same reason, a few more rows for one request cost little.

# %%
again, _ = one(weights, long[-1], last, room, long_table)
assert jnp.allclose(again, everything(weights, long, last), atol=1e-2), "both give the same logits"
assert operations[0] / operations[1] > 20
assert slow / fast > 2

# %% [markdown]
# ## A draft
#
# Three of the four rows were padding. They can verify a guess of the tokens that come next, a *draft*. A simple way to
# get one is to find the last tokens of the request at an earlier place, and to guess that the tokens after them follow
# again. `TokenIndex` does this for a session with `draft="lookup"`.
#
# Suppose that the request has four new tokens so far. Its last three have been there before:

# %%
from rekindle.core.device.sampling.drafts import verify
from rekindle.core.scheduler.drafts.index import MOST_DRAFT, TokenIndex

so_far = prompt + by_hand[:4]
index = TokenIndex(so_far)
match, guesses = index.following(index.newest(MOST_DRAFT), own=True)
print(
    f"{tokenizer.decode(so_far)!r} ends in {match} tokens that it has once more:", repr(tokenizer.decode(so_far[-3:]))
)
print("the guess:", [tokenizer.decode([token]) for token in guesses])

# %% [markdown]
# The newest token and the three guesses are the four rows of one step, at successive positions of one request. Each row
# writes its keys and values before any row attends, and sees the positions up to its own. So the second row has the
# logits of a step of its own, if the first guess is right.


# %%
@jax.jit
def decode_draft(weights, tokens, position, pool, page_table):
    """Return the logits (ROWS, vocab_size) after tokens from this position on, and the pool with them."""
    decoder = nnx.merge(graph, weights)
    every, positions = jnp.full(ROWS, True), position + jnp.arange(ROWS)
    hidden, pool = run_rows(decoder, tokens, positions, every, pool, page_table, "reference")
    return decoder.logits(hidden), pool


rows = jnp.array([so_far[-1], *guesses])
position = len(so_far) - 1
of_rows, pool = decode_draft(weights, rows, position, pool, page_table)
draws = of_rows.argmax(-1)
offsets = jnp.arange(ROWS)
right, last = verify(offsets, rows, draws)
pictures.table(
    [
        (position + row, repr(tokenizer.decode([token])), repr(tokenizer.decode([draw])), "yes" if good else "no")
        for row, (token, draw, good) in enumerate(zip(rows.tolist(), draws.tolist(), right.tolist(), strict=True))
    ],
    head=("position", "token of the row", "draw after it", "all guesses so far are right"),
)

# %% [markdown]
# `verify` is the step's own. It compares each guess with the draw of the row before it. The first guess was that draw,
# the second was not. So two rows count, and this step gives two tokens: a guess, and the model's own token in place of
# the wrong guess. The other rows are dropped. Their keys and values stay in the page until the next tokens of the
# request overwrite them, like the padding above.

# %%
assert match == len(guesses) == 3
assert right.tolist() == [True, True, False, False]
assert last.tolist() == [False, True, False, False], "the last row that counts has the newest token"
assert draws[right].tolist() == by_hand[4:6], "the tokens of two single steps"
after, pool = decode(weights, by_hand[5], len(prompt) + 5, pool, page_table)
assert int(after.argmax()) == by_hand[6], "and the next step does not see the dropped rows"

# %% [markdown]
# A guess changes no token, only the number of steps. This holds for draws at a temperature too, because their random
# numbers depend on seed and position alone. The next cell draws four tokens with seed 7, one step for each. Then one
# step verifies three guesses: all of them right, the last one wrong, and the first one wrong.

# %%
SEED, WARM = 7, 0.7
tokens = list(so_far)
for _ in range(ROWS):
    logits, pool = decode(weights, tokens[-1], len(tokens) - 1, pool, page_table)
    tokens.append(int(drawn(logits, tokens, [SEED], WARM)[0]))
single = tokens[len(so_far) :]
for guesses in (single[:3], [*single[:2], 42], [42, *single[:2]]):
    of_rows, pool = decode_draft(weights, jnp.array([so_far[-1], *guesses]), position, pool, page_table)
    before = [[*so_far, *guesses[:row]] for row in range(ROWS)]
    draws = jnp.array([int(drawn(of_rows[row], before[row], [SEED], WARM)[0]) for row in range(ROWS)])
    right, _ = verify(offsets, jnp.array([so_far[-1], *guesses]), draws)
    count = int(right.sum())
    tokens = draws[right].tolist()
    print(f"{tokenizer.decode(guesses)!r}: {count} of {ROWS} rows count, and give {tokenizer.decode(tokens)!r}")
    assert tokens == single[:count]

# %% [markdown]
# ## The session says the same
#
# A session does all of this in one compiled program for each bucket, `rekindle.core.device.step.step`. It runs prompt
# blocks and decode rows through the decoder, with `write` and attention in each layer, and then computes the logits and
# calls `sample`. The session also decides what this notebook decided by hand: which request gets which pages, whose
# turn it is, and when it ends. That is tutorial 03.

# %%
session = await rekindle.open("smollm2-135m-instruct", precompile="lazy", restore="off", progress=False)
answer = await session.generate(token_ids=prompt, max_tokens=12, temperature=0)
print(repr(answer.text))

# %%
assert list(answer.token_ids) == by_hand == paged
drafted = await session.generate(token_ids=prompt, max_tokens=12, temperature=0, draft="lookup")
assert drafted.token_ids == answer.token_ids

# %% [markdown]
# A draw is the same too: here is the sixth token after the prompt, drawn with seed 7.

# %%
draw = await session.generate(token_ids=opposite, max_tokens=1, temperature=1.0, seed=7)
print(repr(draw.text), repr(tokenizer.decode(alone)))
assert draw.token_ids == (int(alone[0]),)
await session.close()

# %% [markdown]
# Next: `03_four_actors` shows who does what in a running engine.
