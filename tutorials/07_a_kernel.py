# %% [markdown]
# # 07 · A kernel
#
# When a model decodes, each running request asks one question in each layer: *which of the values that I have kept
# matter for this token?* Its keys and values lie in pages, all over the pool (tutorial 02). The computation of the
# answer is called *decode attention*. On a TPU or GPU it is worth a program of its own, a *kernel*.
#
# This notebook starts from the definition of decode attention in plain JAX. It writes a small kernel for it in Pallas,
# JAX's kernel language, and breaks it once. Then it runs the kernels that Rekindle ships on the same numbers, and
# lowers them for a TPU that is not here. All of it runs on CPU, because Pallas has interpreters.

# %%
import importlib.util
import inspect
import os
import time
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pictures  # of these tutorials, beside this notebook
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rekindle_kernels import api, reference

# %% [markdown]
# ## A case with everything that hurts
#
# The case has four rows, that is, four requests with one query each. They have 40, 1, 0 and 64 tokens of context; the
# one with 0 is padding. Six query heads share two key-value heads. A page has 16 tokens, and the page tables have room
# for four pages a row.
#
# Everything that no row may see is poisoned with NaN: the pages that belong to nobody, and the places behind the end of
# a context. In a running engine, such places hold what an earlier owner left there. Page tables end in garbage.

# %%
ROWS, HEADS, KV_HEADS, HEAD_DIM, PAGE, ROOM = 4, 6, 2, 64, 16, 4
GROUP, SCALE = HEADS // KV_HEADS, HEAD_DIM**-0.5


def case(visible, seed=0):
    """Make q, pages, page_table and visible of `api.attend_rows`, for rows that see so many positions."""
    random = np.random.default_rng(seed)
    pages = np.full((1 + ROWS * ROOM, 2, KV_HEADS, PAGE, HEAD_DIM), np.nan, np.float32)
    free = iter(random.permutation(np.arange(1, len(pages))))
    table = np.full((ROWS, ROOM), 12345, np.int32)
    for row, tokens in enumerate(visible):
        for position in range(tokens):
            if position % PAGE == 0:
                table[row, position // PAGE] = next(free)
            pages[table[row, position // PAGE], :, :, position % PAGE] = random.normal(size=(2, KV_HEADS, HEAD_DIM))
    q = random.normal(size=(ROWS, HEADS, HEAD_DIM)).astype(np.float32)
    return tuple(map(jnp.asarray, (q, pages, table, np.array(visible, np.int32))))


VISIBLE = (40, 1, 0, 64)
q, pages, table, visible = case(VISIBLE)
print(np.asarray(table))


# %%
def draw_pages(pages, table, visible):
    """Draw a row for each page, a box for each place, in the colour of its owner; a crossed box holds NaN."""
    owner = {
        int(table[row, place]): (row, place) for row in range(ROWS) for place in range(-(-int(visible[row]) // PAGE))
    }
    rows = []
    for page, places in enumerate(np.asarray(jnp.isnan(pages).any((1, 2, 4)))):
        row, part = owner.get(page, (None, None))
        note = "nobody's" if row is None else f"row {row}, positions {part * PAGE} to {part * PAGE + PAGE - 1}"
        rows.append((f"page {page}", "".join("x" if poisoned else str(row) for poisoned in places), note))
    colours = dict(zip("0123", (pictures.BLUE, pictures.ORANGE, pictures.GREY, pictures.GREEN), strict=True))
    return pictures.boxes("x NaN, else the row of the page", rows, colours)


draw_pages(pages, table, visible)

# %%
assert [int(jnp.isfinite(pages[:, 0, 0, :, 0]).sum())] == [sum(VISIBLE)]
assert int((table == 12345).sum()) == ROWS * ROOM - sum(-(-tokens // PAGE) for tokens in VISIBLE)

# %% [markdown]
# ## The reference
#
# `rekindle_kernels/reference.py` says what each operation means. It is short and slow, and every implementation is
# compared with it. `attend_rows` calls this function, with one query for each sequence:

# %%
print(inspect.getsource(reference.attend))

# %% [markdown]
# So it gathers a row's pages, with one key-value head for each group of query heads. Scores are the products of the
# query and the keys. Softmax turns the scores that are seen into weights, and the result is the mean of the values with
# these weights. A row that sees nothing gets zeros. The next cell does this by hand for head 5 of row 0, whose keys and
# values are in key-value head 5 // 3 = 1:

# %%
expected = api.attend_rows(q, pages, table, visible, scale=SCALE, implementation="reference")

kv = np.concatenate([np.asarray(pages[page, :, 1]) for page in table[0, :3]], axis=1)[:, : VISIBLE[0]]
keys, values = kv  # (40, 64) each
weights = np.exp(keys @ np.asarray(q[0, 5]) * SCALE)
by_hand = weights @ values / weights.sum()
print("apart by at most", np.abs(by_hand - expected[0, 5]).max())

# %%
assert np.allclose(by_hand, expected[0, 5], atol=1e-5)
assert not jnp.isnan(expected).any(), "no poison"
assert not expected[2].any(), "row 2 sees nothing"

# %% [markdown]
# ## What there is to gain
#
# Attention of one query computes little with much data. A page of a key-value head is read once, and meets only the few
# query heads of its group. So decode attention takes as long as it takes to read the pages. A good kernel reads each
# page that is needed once, and no other page. The reference reads four pages for every row, whatever the row sees, and
# also writes a copy of them.

# %%
operations = 4 * HEADS * HEAD_DIM  # a position: scores and mean, a product and a sum each
read = 2 * KV_HEADS * HEAD_DIM * 4  # key and value, float32
needed = sum(-(-tokens // PAGE) for tokens in VISIBLE)
print(f"{operations / read:.1f} operations for a byte; {needed} pages are needed, the reference reads {ROWS * ROOM}")

# %% [markdown]
# By its data sheet, a TPU v5e reads 819 GB and computes 197 trillion bfloat16 operations a second. That is 240
# operations for a byte. So here it would wait for memory nearly all of the time.

# %%
assert operations / read < 10
assert needed == 8

# %% [markdown]
# ## Softmax, a page at a time
#
# A kernel cannot hold a whole context in its fast memory, so it takes one page after the other. But softmax needs the
# sum over all positions. The *online softmax* keeps three things: the largest score so far (`peak`), the sum of
# `exp(score - peak)` so far (`total`), and the same sum with each term multiplied by its value (`weighted`). If a page
# has a larger score, the sums so far shrink by `exp(old peak - new peak)`.
#
# In the shipped TPU kernels, `fold` does this. The next cell calls it for the three pages of row 0, for head 5, whose
# largest score is in the second page:

# %%
from rekindle_kernels.tpu.softmax import MASKED, finish, fold, product

peak, total, weighted = jnp.full((1, 1), MASKED), jnp.zeros((1, 1)), jnp.zeros((1, HEAD_DIM))
lines = []
for start in range(0, VISIBLE[0], PAGE):
    scores = product(q[0, 5][None] * SCALE, jnp.asarray(keys[start : start + PAGE]), (1, 1))
    peak, total, shrink, shares = fold(scores, jnp.ones_like(scores, bool), peak, total)
    weighted = weighted * shrink + product(shares, jnp.asarray(values[start : start + PAGE]), (1, 0))
    error = float(jnp.abs(finish(weighted, peak, total)[0] - expected[0, 5]).max())
    numbers = [float(x.squeeze()) for x in (peak, total, shrink)]
    lines.append((f"positions up to {start + scores.shape[1]}", *(f"{x:.3f}" for x in numbers), f"{error:.0e}"))
pictures.table(lines, head=("after", "peak", "total", "shrunk by", "distance from the reference"))

# %%
assert error < 1e-5 < 1e-2 < float(lines[0][-1]), "right at the end, and not before"

# %% [markdown]
# ## A kernel
#
# `pl.pallas_call` runs a Python function once for each point of a *grid*. The function works on *refs*, which are
# pieces of arrays in fast memory. A `BlockSpec` says which piece: it gives the shape of the piece, and an index map
# from the point of the grid to the place of the piece. Pallas copies the pieces in and out, and while the function
# works on the current pieces, the next ones are copied.
#
# Our grid is (row, place in the page table). The trick of paged attention is in one index map: at (row, place), the
# piece of the pool is the page that the *page table* names there. Index maps may look into arrays of integers that are
# known before the kernel starts, the *prefetched scalars*. Here these are the table and `visible`.
#
# A piece is not copied again if its index is the same as in the step before. So behind the end of a context, the index
# map stays at the last page that is needed, and nothing is read in vain.


# %%
def last_place(visible, row):
    """Return the place in the page table of the last page that a row needs."""
    return jnp.maximum(pl.cdiv(visible[row], PAGE) - 1, 0)


def page_at(row, place, table, visible):
    """Return the piece of the pool at a point of the grid: one whole page."""
    return table[row, jnp.minimum(place, last_place(visible, row))], 0, 0, 0, 0


def small_attend_rows(kernel, q, pages, table, visible, interpret=True):
    """Compute `api.attend_rows` by a kernel of ours, in the interpreter or for a TPU."""
    of_row = pl.BlockSpec((1, KV_HEADS, GROUP, HEAD_DIM), lambda row, place, table, visible: (row, 0, 0, 0))
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ROWS, KV_HEADS, GROUP, HEAD_DIM), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(ROWS, ROOM),
            in_specs=[of_row, pl.BlockSpec((1, 2, KV_HEADS, PAGE, HEAD_DIM), page_at)],
            out_specs=of_row,
            scratch_shapes=[  # kept from one step to the next
                pltpu.VMEM((KV_HEADS, GROUP, 1), jnp.float32),
                pltpu.VMEM((KV_HEADS, GROUP, 1), jnp.float32),
                pltpu.VMEM((KV_HEADS, GROUP, HEAD_DIM), jnp.float32),
            ],
        ),
        interpret=interpret,
        name="small_attend_rows",
    )(jnp.clip(table, 0, len(pages) - 1), visible, q.reshape(ROWS, KV_HEADS, GROUP, HEAD_DIM), pages)
    return out.reshape(ROWS, HEADS, HEAD_DIM)


# %% [markdown]
# The kernel itself sees one page at a time. Its scratch memory holds the three sums of the current row.


# %%
def kernel(table, visible, q, page, out, peak, total, weighted, hide=lambda left, values: values):
    row, place = pl.program_id(0), pl.program_id(1)

    @pl.when(place == 0)
    def begin():
        peak[...] = jnp.full_like(peak, MASKED)
        total[...] = jnp.zeros_like(total)
        weighted[...] = jnp.zeros_like(weighted)

    @pl.when(place * PAGE < visible[row])
    def visit():
        left = visible[row] - place * PAGE  # positions of this page that the row sees, or more
        seen = lax.broadcasted_iota(jnp.int32, (1, PAGE), 1) < left
        for head in range(KV_HEADS):
            keys, values = page[0, 0, head], hide(left, page[0, 1, head])
            scores = product(q[0, head] * SCALE, keys, (1, 1))  # (GROUP, PAGE)
            peak[head], total[head], shrink, weights = fold(scores, seen, peak[head], total[head])
            weighted[head] = weighted[head] * shrink + product(weights, values, (1, 0))

    @pl.when(place == pl.num_programs(1) - 1)
    def end():
        out[0] = finish(weighted[...], peak[...], total[...])


first_try = small_attend_rows(kernel, q, pages, table, visible)
for row in range(ROWS):
    error = float(jnp.abs(first_try[row] - expected[row]).max())
    print(f"row {row}, {VISIBLE[row]:2} positions: apart by at most {error:.1e}")

# %% [markdown]
# Rows 2 and 3 are right. Rows 0 and 1 are NaN, though no poisoned position is *seen*: their scores are masked, and
# their weights are 0. But the mean of the values is a product, and 0 * NaN is NaN. In a real pool this would happen
# rarely and at random, when an earlier owner of a page had left an infinity there. So the values have to be hidden too:


# %%
def hide(left, values):
    """Set all but the first `left` positions of values (PAGE, HEAD_DIM) to zero."""
    return jnp.where(lax.broadcasted_iota(jnp.int32, values.shape, 0) < left, values, 0.0)


attend_small = jax.jit(partial(small_attend_rows, partial(kernel, hide=hide)))
for lengths, seed in (
    (VISIBLE, 0),
    ((64, 64, 64, 64), 1),
    ((0, 0, 0, 0), 2),
    ((17, 16, 15, 33), 3),
    ((2, 63, 48, 1), 4),
):
    arguments = case(lengths, seed)
    wanted = api.attend_rows(*arguments, scale=SCALE, implementation="reference")
    error = float(jnp.abs(attend_small(*arguments) - wanted).max())
    print(f"{lengths!s:18} apart by at most {error:.1e}")
    assert error < 1e-5

# %% [markdown]
# How much does the kernel read? The index map is a plain function, so we can walk the grid with it and count how often
# the index changes.

# %%
clipped = np.clip(np.asarray(table), 0, len(pages) - 1)
walked = [int(page_at(row, place, clipped, np.asarray(visible))[0]) for row in range(ROWS) for place in range(ROOM)]
copies = 1 + sum(before != after for before, after in pairwise(walked))
print("pages at the points of the grid:", walked)
print(f"{copies} copies; {needed} pages are needed")

# %%
assert jnp.isnan(first_try[:2]).all()
assert jnp.allclose(first_try[2:], expected[2:], atol=1e-5)
assert copies == needed + 1, "row 2 sees nothing, and its place is filled by one page all the same"

# %% [markdown]
# ## The shipped kernels
#
# `rekindle_kernels/tpu/rows.py` computes the same with the same `fold`. Everything that it adds makes the reading
# faster:
#
# - A page is a small piece. The shipped kernel reads *tiles* of several pages. It starts the copies itself, keeps
#   several in flight at once, and goes on across the border from one row to the next (`stream.py`).
# - One step of its grid is a group of rows, and only pages with positions that are seen are copied at all.
# - If there are fewer rows than cores, a long context is cut into parts. Their results are joined by their sums.
# - TPU memory is made of rows of 128 lanes. A head of 64 numbers would leave half of them empty, so its key and its
#   value share one row (`form.py`). Each implementation decides for itself how a pool is stored, and `api.empty` asks
#   it.

# %%
from rekindle_kernels.tpu import form

rows = []
for head_dim in (64, 80, 128):
    asked = (17, 2, KV_HEADS, PAGE, head_dim)
    stored = form.stored_shape(asked)
    rows.append((f"head_dim {head_dim}", str(asked), str(stored), f"{np.prod(stored) / np.prod(asked):.2f}"))
pictures.table(rows, head=("", "asked for", "stored for TPU", "times the memory"))

# %% [markdown]
# To run it here, Pallas has an interpreter that imitates a TPU: its memories, its copies in flight, its semaphores. The
# interpreter fills memory that nobody has written with NaN, and in our tests it looks for races as well. The GPU
# kernels are written in Pallas's Triton dialect, which has an interpreter too. All of them get the same numbers, each
# in its own form.

# %%
from rekindle_kernels.gpu.target import Target, tracing_for

tpu_form = jax.ShapeDtypeStruct(form.stored_shape(pages.shape), pages.dtype)
tpu_pages = form.pack(pages, tpu_form)
attend = partial(api.attend_rows, scale=SCALE)

results = {"xla": attend(q, pages, table, visible, implementation="xla")}
with tracing_for(Target(interpret=True)):
    results["gpu"] = attend(q, pages, table, visible, implementation="gpu")
with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
    results["tpu"] = attend(q, tpu_pages, table, visible, implementation="tpu")
pictures.table(
    [(name, f"{float(jnp.abs(out - expected).max()):.1e}") for name, out in results.items()],
    head=("implementation", "apart from the reference by at most"),
)

# %%
for name, out in results.items():
    assert jnp.allclose(out, expected, atol=1e-5), name
assert tpu_pages.shape == (17, 1, KV_HEADS, PAGE, 128)
assert tpu_pages.size == pages.size, "nothing is wasted for 64"

# %% [markdown]
# ## Which one runs
#
# `api.py` checks the arguments and chooses an implementation. By default it takes the one for the platform if that
# serves the pool, and otherwise the portable one. `unsupported_reason` says why an implementation does not serve a
# pool.

# %%
pools = {
    "head_dim 64, bfloat16": ((17, 2, 2, 16, 64), jnp.dtype("bfloat16")),
    "head_dim 512, bfloat16": ((17, 2, 2, 16, 512), jnp.dtype("bfloat16")),
    "pages of 8 tokens": ((17, 2, 2, 8, 64), jnp.dtype("bfloat16")),
}
PLATFORMS = ("cpu", "gpu", "tpu")
pictures.table(
    [(name, *(api.choose(platform, *pool) for platform in PLATFORMS)) for name, pool in pools.items()],
    head=("pool", *PLATFORMS),
)

# %% [markdown]
# If you ask for an implementation by name, it is never replaced by another in silence.

# %%
try:
    api.empty((17, 2, 2, 8, 64), jnp.dtype("bfloat16"), implementation="tpu")
except ValueError as error:
    print(f"ValueError: {error}")

# %% [markdown]
# The portable implementation is `"xla"`. It is the same online softmax in a loop over tiles of pages, which ends with
# the longest context of the batch. So its time grows with the context. The time of the reference grows with the room in
# the page table:

# %%
LONG = 2048
wide = (
    jnp.ones((8, 9, 64)),
    jnp.ones((1 + 8 * LONG // PAGE, 2, 3, PAGE, 64)),
    jnp.arange(8 * LONG // PAGE).reshape(8, -1) + 1,
)


def seconds(implementation, context):
    """Return the best time of three runs for eight rows with so much context, in page tables for LONG tokens."""
    run = jax.jit(partial(attend, implementation=implementation))
    arguments, times = (*wide, jnp.full(8, context)), []
    for _ in range(4):
        start = time.perf_counter()
        run(*arguments).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times[1:])


timed = {name: [seconds(name, context) for context in (64, LONG)] for name in ("reference", "xla")}
rows = [(name, *(f"{1e3 * each:.1f} ms" for each in both)) for name, both in timed.items()]
pictures.table(rows, head=("", "context 64", f"context {LONG:,}"))

# %%
assert [api.choose(platform, *pools["head_dim 64, bfloat16"]) for platform in PLATFORMS[1:]] == ["gpu", "tpu"]
assert api.choose("cpu", *pools["pages of 8 tokens"]) in ("cpu", "xla")
assert api.choose("gpu", *pools["head_dim 512, bfloat16"]) == "gpu"
assert api.choose("tpu", *pools["pages of 8 tokens"]) == "xla"

# %% [markdown]
# ## For the CPU that you sit at
#
# XLA compiles `"xla"` for any device, but it copies each page before it attends to it. On a CPU a session runs `"cpu"`,
# the same online softmax once more, in C++ (`cpu/source/attention.h`). It reads keys and values where they lie. XLA
# calls it through its *foreign function interface*: in the compiled program, the whole attention is one custom call.

# %%
native = api.choose("cpu", wide[1].shape, wide[1].dtype)  # "xla" if there is no C++ compiler here
run = jax.jit(partial(attend, implementation=native))
program = run.lower(*wide, jnp.full(8, 64)).compile().as_text()
[line.strip()[:100] for line in program.splitlines() if "custom_call_target" in line]

# %% [markdown]
# A library in machine code runs on any CPU of its kind, so it has its loops several times, for several sets of
# instructions, and takes the best that this CPU has. They are written once, over vectors of the compiler. The calls run
# on the threads that XLA has anyway.
#
# The kernel adds up a row's numbers in the order of their positions, tile by tile, whatever stands beside the row. So a
# row has the same bits alone as in a batch. XLA chooses its order by the shape of the batch, and promises nothing.

# %%
batch = jax.random.normal(jax.random.key(1), wide[0].shape)
contexts = jnp.arange(8) * 200 + 100
together = run(batch, *wide[1:], contexts)
alone = jnp.concatenate([run(batch[i : i + 1], wide[1], wide[2][i : i + 1], contexts[i : i + 1]) for i in range(8)])
timed = {name: [seconds(name, context) for context in (64, LONG)] for name in ("xla", native)}
rows = [(name, *(f"{1e3 * each:.2f} ms" for each in both)) for name, both in timed.items()]
pictures.table(rows, head=("", "context 64", f"context {LONG:,}"))

# %%
assert native == "xla" or jnp.array_equal(together, alone)
assert jnp.allclose(together, alone, atol=1e-5)

# %% [markdown]
# ## For a TPU that is not here
#
# A kernel that is right in an interpreter may still be refused by the compiler. The first half of compiling,
# *lowering*, turns the function into the compiler's own language. JAX lowers for any platform on any machine, and
# Pallas checks the rules of a TPU on the way. One rule, for example, says that the last two dimensions of a block are
# multiples of 8 and of 128, or whole.

# %%
Shape = jax.ShapeDtypeStruct


def lowered(function, *shapes):
    """Lower a function for TPU, and return its program as StableHLO text."""
    return jax.jit(function).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()


def columns(width):
    """Make a kernel that doubles an array (8, 300), in blocks of so many columns."""
    block = pl.BlockSpec((8, width), lambda step: (0, step))

    def double(x, out):
        out[...] = 2 * x[...]

    out = Shape((8, 300), jnp.float32)
    return pl.pallas_call(double, out_shape=out, grid=(pl.cdiv(300, width),), in_specs=[block], out_specs=block)


for width in (128, 100):
    try:
        print(f"blocks of {width} columns: {len(lowered(columns(width), Shape((8, 300), jnp.float32)))} characters")
    except ValueError as error:
        refused = str(error)
        print(f"blocks of {width} columns: {refused.split('. ')[0]}")

# %% [markdown]
# Our own small kernel passes. So does the shipped one, here for 32 rows of SmolLM2's heads with up to 2,048 positions
# each.

# %%
own = lowered(partial(small_attend_rows, partial(kernel, hide=hide), interpret=False), *case(VISIBLE))
pool = Shape(form.stored_shape((513, 2, 3, 64, 64)), jnp.bfloat16)
shapes = (Shape((32, 9, 64), jnp.float32), pool, Shape((32, 32), jnp.int32), Shape((32,), jnp.int32))
shipped = lowered(partial(attend, implementation="tpu"), *shapes)
for text in (own, shipped):
    print(f"{len(text):,} characters of StableHLO, with {text.count('@tpu_custom_call')} kernel in it")

# %% [markdown]
# The kernel is one operation in the program, a custom call that carries the kernel's own code. It also carries an
# estimate of its cost, because the compiler cannot look inside. `rows.cost` computes that estimate, and a test compares
# it with the compiler's own analysis.

# %%
from rekindle_kernels.tpu import rows as tpu_rows

cost = tpu_rows.cost(32, 9, 64, 32 * 64, pool)
pictures.table(
    [
        ("operations", f"{cost.flops:,}"),
        ("bytes", f"{cost.bytes_accessed:,}"),
        ("exponentials", f"{cost.transcendentals:,}"),
        ("operations for a byte", f"{cost.flops / cost.bytes_accessed:.1f}"),
    ]
)

# %% [markdown]
# The second half of compiling needs the TPU's own compiler, libtpu, which runs without a TPU. `make test-tpu` installs
# it together with the tests in an environment of its own, and compiles every kernel and whole steps of models for v5e,
# v6e and v5p. That is worth the time. When this notebook was written, `hide` first turned `seen` on its side with a
# `reshape`. That was right in the interpreter, was lowered without a word, and crashed the compiler.
#
# The next cell compiles both kernels for a v5e, if libtpu is installed.


# %%
def compiled_for_v5e(function, *shapes):
    """Compile a function for a v5e, and return what the compiler says about its memory."""
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or libtpu asks Google's cloud what machine this is
    device = topologies.get_topology_desc("v5e:2x2", "tpu").devices[0]
    place = jax.sharding.SingleDeviceSharding(device)
    placed = [Shape(shape.shape, shape.dtype, sharding=place) for shape in shapes]
    return jax.jit(function).lower(*placed).compile().memory_analysis()


if importlib.util.find_spec("libtpu") is None:
    print("libtpu is not installed here: make test-tpu")
else:
    compiled_for_v5e(partial(small_attend_rows, partial(kernel, hide=hide), interpret=False), *case(VISIBLE))
    memory = compiled_for_v5e(partial(attend, implementation="tpu"), *shapes)
    print(f"beside its arguments it takes {memory.temp_size_in_bytes:,} bytes; the pool has {pool.size * 2:,}")
    assert memory.temp_size_in_bytes < pool.size, "the pool is not copied"

# %%
assert "divisible by 8 and 128" in refused
assert own.count("@tpu_custom_call") == shipped.count("@tpu_custom_call") == 1
assert "small_attend_rows" in own
assert "rekindle_attend_rows" in shipped
assert cost.flops / cost.bytes_accessed < 10

# %% [markdown]
# No compiler and no interpreter can say how fast a kernel is. The sizes of tiles and the number of copies in flight are
# data, by device, in `tpu/tuning.json` and `gpu/tuning.json`. They are estimates until they have been measured on a
# device.
