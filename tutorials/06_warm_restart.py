# %% [markdown]
# # 06 · A warm restart
#
# A restart of the kernel ends a Python process. Everything that took time to make in it is gone: the compiled programs
# ([05](05_compiled_steps.ipynb)), and the pages with the keys and values of every prompt
# ([04](04_pages_and_prefixes.ipynb)). Rekindle writes both to disk while it runs, so that the next process finds them.
#
# Run the next three cells. They open the embedded model, ask it about a long document, and say what was found of
# earlier sessions. With these settings the model has few programs, so that this notebook is quick.

# %%
import rekindle

SETTINGS = {"max_context": 1024, "max_running": 4, "max_prefill_tokens": 64, "progress": False}
session = await rekindle.open("smollm2-135m-instruct", **SETTINGS, show_restored=True)

# %%
document = "The keeper of the lighthouse wrote into his log every evening. " + " ".join(
    f"On day {day} the keeper counted {3 * day % 7 + 2} ships." for day in range(1, 37)
)
chat = [{"role": "system", "content": document}, {"role": "user", "content": "Who wrote the log?"}]
answer = await session.generate(chat, max_tokens=24)
answer

# %%
await session.precompiled(progress=False)
await session.save(progress=False)
session.restored

# %% [markdown] tags=["restart"]
# ## Restart the kernel now
#
# Choose *Restart Kernel…* from the menu *Kernel*, and run the cells above again.
#
# The first time, 9 programs are compiled, and the first of them delays `open` by many seconds. All 454 tokens of the
# prompt are computed. The second time looks like the outputs that this notebook was stored with, which are of a
# second run:
#
# - `open` takes a second or two. Its card has a bar for the cold start, as measured then, and one for this start.
#   `session.restored` is the same card later. It says that all 9 programs were loaded, and that none was compiled.
# - The answer is the same. The line below it says that 448 tokens of its prompt came from disk. These are the seven
#   whole pages of 64 tokens. The last 6 tokens are less than a page, and were computed.
#
# `precompiled` waits until all programs are ready and stored. `save` writes the cached pages that are not on disk yet.
# You need neither call, because both things happen by themselves when the engine is idle. They are here because you
# restart at once, and what is stored by then should not depend on chance.
#
# To open a session, Rekindle reads which pages are on disk, but not their contents. A page is read when a request finds
# it. By now the pages of the document are on the device (`D`) and on disk (`S`):

# %%
session.cache.draw()

# %%
assert session.restored.programs + session.restored.compiled == session.stats.programs == 9
await session.close()

# %% [markdown]
# ## Cold against warm
#
# What is gained shows best side by side. This notebook now starts kernels of its own. The first one is **cold**: it
# finds nothing on disk. It is killed, and the next one is **warm**.
#
# The file `restarts.py`, beside this notebook, has what is needed for that. A `Cache` is a cache directory that has
# nothing but your downloaded models. A `Kernel` is a process that runs cells. `CELLS` are those from above, as texts.

# %%
from restarts import Cache, Kernel, bars

cache = Cache()
CELLS = {
    "import": "import rekindle",
    "open": f"session = await rekindle.open('smollm2-135m-instruct', **{SETTINGS})",
    "answer": f"answer = await session.generate({chat}, max_tokens=24)",
}
STORE = "await session.precompiled(progress=False); await session.save(progress=False)"
TELL = "print(session.restored, answer.text, f'cached: {answer.cached}', sep='\\n')"

# %%
kernel = await Kernel.start(cache)
seconds = {"cold": await kernel.time(CELLS)}
await kernel.run(STORE)
cold = await kernel.run(TELL)
print(cold)
print("exit status", await kernel.kill())

# %% [markdown]
# `kill` is `kill -9`. The process gets no chance to tidy up, as when memory runs out, or when a front end loses
# patience during a restart. If an exit status is negative, it is the number of the signal that ended the process: 9 is
# SIGKILL.
#
# The directory is left. `rekindle cache` shows it on the command line. The cached pages of a model on disk are called
# its *snapshot*.

# %%
cache.command("ls")

# %% [markdown]
# Another process runs the same cells:

# %%
kernel = await Kernel.start(cache)
seconds["warm"] = await kernel.time(CELLS)
await kernel.run(STORE)
warm = await kernel.run(TELL)
print(warm)

# %% [markdown]
# Both kernels did the same work. These are the seconds that each of their cells took. What `open` saves is compiling,
# and what the answer saves is computing its prompt.

# %%
bars(seconds)

# %%
assert "9 programs loaded, 0 compiled" in warm
assert "cached: 448 on disk" in warm
assert warm.splitlines()[1] == cold.splitlines()[1], "the same answer"
status = await kernel.kill()

# %% [markdown]
# ## The key of a program
#
# A compiled program is machine code for one shape, one model, one CPU and one compiler. A program that was made for
# another would crash at best, and at worst give other numbers. So each program is stored under a digest of everything
# that makes it valid. These are the parts of such a key:

# %%
from rekindle.core.device.programs.store import ProgramCatalog

entries = ProgramCatalog(cache.path / "programs").entries()
step = next(entry for entry in entries if entry.parts["program"] == "step of 64+0")
print(f"{step.digest[:16]}…, {step.bytes / 1e3:.0f} kB\n")
for part, value in step.parts.items():
    print(f"{part:17} {value if len(value) < 90 else value[:88] + '…'}")

# %% [markdown]
# All of this is known from the settings and the environment. Nothing is traced or lowered to find a program, and
# besides the compiling itself this is most of what loading saves. `code` is a digest of those of Rekindle's own sources
# that can end up in a program. If you edit one of them, you get new programs, never old ones.
#
# `rekindle cache explain` makes the keys that `open` would make with the given settings, looks for them, and says what
# differs if one is not there. It reads no weights and compiles nothing. Here one setting is changed: another bucket is
# one more program.

# %%
settings = ("--max-context=1024", "--max-running=4", "--max-prefill-tokens=64", "--decode-buckets=1,2,4")
cache.command("explain", "smollm2-135m-instruct", "--quiet", *settings)

# %% [markdown]
# With another page size, the pool has another shape, and every program takes the pool. So none of the stored programs
# fits, and neither do the cached pages, which have a key of their own. `session.restored.differences` has each part of
# a key that differs, with its value here and there.
#
# Compiling may be worse than failing, as on a machine that is paid by the minute. Then `restore="require"` refuses to
# open if something would have to be compiled, and says why:

# %%
import warnings

with warnings.catch_warnings(record=True, action="always") as warned:
    try:
        await rekindle.open("smollm2-135m-instruct", **SETTINGS | {"page_size": 32}, restore="require")
    except rekindle.NotRestored as error:
        print("NotRestored:", error)

# %% [markdown]
# ## What is in a snapshot
#
# Cached pages are stored in *segments* of up to 16 pages, and a segment never changes. Its header says which pages it
# has. This is all that a session reads when it opens:

# %%
import numpy as np

from rekindle.core.store.segments import open_segment
from rekindle.formats.checkpoints.open import open_checkpoint

tokenizer = open_checkpoint("smollm2-135m-instruct").tokenizer
for seal in (cache.path / "snapshots").rglob("seal.json"):
    segment = open_segment(seal.parent)
    print(f"{cache.shortened(segment.origin.model)}, {segment.bytes / 1e6:.1f} MB")
    print(f"  valid for the same {', '.join(segment.origin.parts)}")
    for page in segment.pages:
        text = tokenizer.decode(np.frombuffer(page.key, "<i4").tolist())
        print(f"  {page.parent[:6]}… → {page.digest[:6]}…  {page.dtype}{list(page.shape)}  {text[:44]!r}")

# %% [markdown]
# The digest of a page is made of its tokens and of the digest of the page before it. So a page is found only behind the
# same beginning. The first page is behind a root, which stands for a namespace: `cache_salt` chooses another one. The
# header also has a digest of each page's content, which is checked when the page is read.
#
# The tokens themselves are in the header. Who can read this file can read your prompts, so the directory must belong to
# you alone.

# %% [markdown]
# ## A damaged byte
#
# A process may be killed while it writes, and disks fail. Everything is written under a temporary name first, and
# renamed when it is complete. Every byte is checked against a digest before it is used. What does not match is dropped
# with a warning, and made anew. Now we change one byte in a program, and one in the cached pages:


# %%
def damage(directory):
    """Change a byte in the middle of the largest file."""
    largest = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


damage(cache.path / "programs" / next(entry.digest for entry in entries if entry.parts["program"] == "enter"))
damage(cache.path / "snapshots")
cache.command("verify", status=1)

# %% [markdown]
# `verify` only looks. The next kernel needs what is damaged. It compiles that one program. It drops the segment with
# the damaged page, and computes again the pages that it has not read before. It warns of both, and gives the same
# answer.

# %%
kernel = await Kernel.start(cache)
warned = "".join([await kernel.run(cell) for cell in CELLS.values()]) + await kernel.run(STORE)
healed = await kernel.run(TELL)
await kernel.kill()
print(healed)
print(cache.shortened(warned))
cache.command("verify")

# %%
assert "8 programs loaded, 1 compiled" in healed
assert healed.splitlines()[1] == cold.splitlines()[1], "the same answer"
assert healed.splitlines()[2] != warm.splitlines()[2], "fewer tokens from disk"
cache.remove()

# %% [markdown]
# Next: `07_a_kernel` writes the attention that all these programs call.
