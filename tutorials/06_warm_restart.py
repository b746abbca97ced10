# %% [markdown]
# # 06 · A warm restart
#
# A kernel restart ends a Python process. Everything that took time to make in it is gone: the compiled programs
# ([05](05_compiled_steps.ipynb)), and the pages with the keys and values of every prompt
# ([04](04_pages_and_prefixes.ipynb)). Rekindle writes both to disk while it runs, so that the next process finds them.
#
# This notebook shows it with kernels that it starts itself. The first one opens a model **cold**, with nothing on disk,
# and is killed. The next one runs the same cells and is **warm**. Then we look at what is on disk, by which key it is
# found, and what happens if a key differs or a byte is damaged.

# %%
import contextlib
import io
import json
import os
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

from IPython.display import HTML
from jupyter_client.manager import start_new_async_kernel

from rekindle.__main__ import main
from rekindle.device.programs.store import KeptPrograms
from rekindle.store.directory import cache_dir

# %% [markdown]
# ## A kernel to kill
#
# Everything that outlives a process is in one directory: `REKINDLE_CACHE`, or your platform's cache directory if that
# is not set. The kernels of this notebook get a directory of their own, so that the first one is cold in every run. It
# shares only the downloaded models with yours.

# %%
here = tempfile.TemporaryDirectory(prefix="rekindle-")  # made with mode 0700, which the stores insist on
cache = Path(here.name).resolve()
(cache / "models").symlink_to(cache_dir("models"))

# %% [markdown]
# A kernel is a process that runs cells. `Kernel.run` sends it a cell, waits until the cell has ended, and returns what
# it printed. `Kernel.kill` is `kill -9`. The process gets no chance to tidy up, as when memory runs out, or when a
# front end loses patience during a restart.


# %%
class Kernel:
    """A Jupyter kernel: a process of its own that runs cells."""

    @classmethod
    async def start(cls):
        self = cls()
        environment = {**os.environ, "REKINDLE_CACHE": str(cache)}
        self.manager, self.client = await start_new_async_kernel(env=environment, stderr=subprocess.DEVNULL)
        return self

    async def run(self, cell):
        said = []

        def hear(message):
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])

        reply = await self.client.execute_interactive(cell, output_hook=hear, allow_stdin=False)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(said)

    async def kill(self):
        process = self.manager.provisioner.process
        self.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)
        return process.returncode


# %% [markdown]
# ## The cells of a notebook
#
# These are the cells that each kernel will run from the first to the last, as after *Restart and run all*. They open
# the embedded model, ask two questions about a document, and say what happened.
#
# The settings are small: there is one bucket for prompts and one for decoding, so that few programs have to be
# compiled. [05_compiled_steps](05_compiled_steps.ipynb) explains them.

# %%
SETTINGS = {
    "max_context": 1024,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "prefill_chunk": 64,
    "prefill_buckets": [64],
    "decode_buckets": [4],
    "progress": False,
}

OPEN = f"""
import json, time
started = time.perf_counter()
import rekindle

imported = time.perf_counter()
SETTINGS = {SETTINGS}
session = await rekindle.open("smollm2-135m-instruct", **SETTINGS)
opened = time.perf_counter()
"""

LOOK = """
print(session.cache.draw())
"""

ASK = """
DOCUMENT = "The keeper of the lighthouse wrote into his log every evening. " + " ".join(
    f"On day {day} the keeper counted {3 * day % 7 + 2} ships." for day in range(1, 37)
)

def chat(question):
    return [{"role": "system", "content": DOCUMENT}, {"role": "user", "content": question}]

answers = [
    await session.generate(chat("Who wrote the log?"), max_tokens=24, temperature=0),
    await session.generate(chat("What did the keeper count?"), max_tokens=24, temperature=0.8, seed=7),
]
await session.precompiled(progress=False)  # by then, every warning about a program has been printed
"""

TELL = """
saved = await session.save(progress=False)
first, stats = answers[0], session.stats
print(json.dumps({
    "seconds": {
        "import rekindle": imported - started, "open": opened - imported, "first token": first.timings.first_token,
    },
    "loaded": session.restored.programs,
    "compiled": stats.compilations,
    "prompt": first.usage.prompt_tokens,
    "cached": {"device": first.cached.device, "host": first.cached.host, "disk": first.cached.disk},
    "both from disk": sum(answer.cached.disk for answer in answers),
    "tokens": [answer.token_ids for answer in answers],
    "texts": [answer.text for answer in answers],
    "pages saved": saved,
    "pages on disk": stats.scheduler.disk_pages,
}))
"""

# %% [markdown]
# ## Cold
#
# The first kernel finds an empty directory.

# %%
kernel = await Kernel.start()
await kernel.run(OPEN)
print(await kernel.run(LOOK))
await kernel.run(ASK)
cold = json.loads(await kernel.run(TELL))
for text in cold["texts"]:
    print(text)

# %% [markdown]
# Every program was compiled, and every token of the prompt was computed.
#
# `open` did not wait until everything was compiled. With `precompile="background"`, the default, it returns as soon as
# one request can be served, and the other programs are made meanwhile. `await session.precompiled()` waits until all of
# them are ready *and stored*. `await session.save()` writes the cached pages that are not yet on disk, and returns how
# many these were. Neither call is needed, because both things happen by themselves when the engine is idle. They are
# here because this kernel is going to be killed, and what it has stored by then should not depend on chance.

# %%
print(f"programs: {cold['loaded']} loaded, {cold['compiled']} compiled")
print(f"the prompt's {cold['prompt']} tokens: {cold['cached']} found, the rest computed")
print(f"pages on disk: {cold['pages on disk']}, of which save() had to write {cold['pages saved']}")

assert cold["loaded"] == 0
assert cold["compiled"] == 6
assert sum(cold["cached"].values()) == 0
assert cold["pages on disk"] >= cold["prompt"] // 64

# %% [markdown]
# ## Killed
#
# The session is not closed, and the kernel is not asked to stop. If an exit status is negative, it is the number of the
# signal that ended the process: 9 is SIGKILL.

# %%
status = await kernel.kill()
print("exit status", status)
assert status != 0


# %% [markdown]
# The directory is left. `rekindle cache` shows it on the command line, and a cell can call it too. The cached pages of
# a model on disk are called its *snapshot*.


# %%
def rekindle_cache(*arguments, status=0):
    """Run `rekindle cache ARGUMENTS`, check its exit status, and print what it says with shorter names."""
    said = io.StringIO()
    with mock.patch.dict(os.environ, REKINDLE_CACHE=str(cache)), contextlib.redirect_stdout(said):
        assert main(["cache", *arguments]) == status
    print(said.getvalue().replace(str(cache_dir("models").resolve()), "(yours)").replace(str(cache), "CACHE"))


rekindle_cache("ls")
rekindle_cache("size")
# %% [markdown]
# ## Warm
#
# Another process runs the same cells. Before we ask it anything, we look at its prefix cache. It knows the pages, and
# they are only on disk (`S`). To open a session, Rekindle reads which pages there are, but not their contents. A page
# is read when a request finds it.

# %%
kernel = await Kernel.start()
await kernel.run(OPEN)
found = await kernel.run(LOOK)
await kernel.run(ASK)
warm = json.loads(await kernel.run(TELL))
print(found)
print(await kernel.run(LOOK))
print(await kernel.run("print(session.restored)"))

# %% [markdown]
# Nothing was compiled. The whole pages of the prompt, 64 tokens each, came from disk. The rest of the prompt is less
# than a page, and was computed in one tick.
#
# The tokens are the same: those of the greedy answer, and those of the drawn one too, because its seed was given. A
# random number depends on the seed and on the position, not on the process.

# %%
print(f"programs: {warm['loaded']} loaded, {warm['compiled']} compiled")
print(f"the prompt's {warm['prompt']} tokens: {warm['cached']} found, the rest computed")

assert (warm["loaded"], warm["compiled"]) == (6, 0)
assert warm["cached"] == {"device": 0, "host": 0, "disk": cold["prompt"] // 64 * 64}
assert warm["tokens"] == cold["tokens"]
assert warm["pages saved"] == 0

# %% [markdown]
# It is also quicker. The bars begin where a cell says `import rekindle`, and end at the first token of the first
# answer. Both kernels did the same work on the same machine, but for the first one the directory was empty.

# %%
SHADES = {"import rekindle": "130,130,130", "open": "230,140,20", "first token": "40,130,220"}


def bars(runs):
    """Draw a bar for each run, with its stages one after the other."""
    longest = max(sum(seconds.values()) for seconds in runs.values())
    rows = ""
    for name, seconds in runs.items():
        parts = "".join(
            f'<span title="{stage}: {taken:.2f} s" style="display:inline-block;height:1.4em;'
            f'width:{100 * taken / longest:.2f}%;background:rgba({SHADES[stage]},0.6)"></span>'
            for stage, taken in seconds.items()
        )
        said = ", ".join(f"{stage} {taken:.2f} s" for stage, taken in seconds.items())
        rows += f'<div style="margin-top:0.6em"><b>{name}</b>: {sum(seconds.values()):.1f} s ({said})</div>'
        rows += f'<div style="max-width:48em;line-height:0">{parts}</div>'
    legend = "".join(
        f'<span style="background:rgba({shade},0.6);padding:0 0.5em;margin-right:0.6em">{stage}</span>'
        for stage, shade in SHADES.items()
    )
    return HTML(f"<div>{legend}{rows}</div>")


bars({"cold": cold["seconds"], "warm": warm["seconds"]})

# %%
total = {name: sum(run["seconds"].values()) for name, run in {"cold": cold, "warm": warm}.items()}
print(f"from the import to the first token: {total['cold']:.1f} s cold, {total['warm']:.1f} s warm")
assert total["warm"] < total["cold"]

# %% [markdown]
# ## The key of a program
#
# A compiled program is machine code for one shape, one model, one CPU and one compiler. A program that was made for
# another would crash at best, and at worst give other numbers. So each program is stored under a digest of everything
# that makes it valid. The next cell prints the parts of such a key. `seal.json`, beside the program, holds them in
# full.

# %%
entries = KeptPrograms(cache / "programs").entries()
step = next(entry for entry in entries if entry.parts["program"] == "step of 64+0")
print(f"{step.digest[:16]}…, {step.bytes / 1e3:.0f} kB\n")
for part, value in step.parts.items():
    print(f"{part:17} {value if len(value) < 90 else value[:88] + '…'}")

assert len(entries) == 6
assert len({entry.digest for entry in entries}) == 6

# %% [markdown]
# All of this is known from the settings and the environment. Nothing is traced or lowered to find a program, and
# besides the compiling itself this is most of what loading saves. `code` is a digest of those of Rekindle's own sources
# that can end up in a program. If you edit one of them, you get new programs, never old ones.
#
# `rekindle cache explain` makes the keys that `open` would make with the given settings, looks for them, and says what
# differs if one is not there. It reads no weights and compiles nothing.

# %%
explain = [
    *("explain", "smollm2-135m-instruct", "--quiet", "--max-context=1024", "--max-running=4"),
    *("--max-prefill-tokens=64", "--prefill-buckets=64", "--decode-buckets=4"),
]
rekindle_cache(*explain)
# %% [markdown]
# Now we change one setting. Another bucket is one more program. The others are still there:

# %%
rekindle_cache(*explain, "--decode-buckets=1,4")
# %% [markdown]
# With another page size, the pool has another shape, and every program takes the pool. So none of the stored programs
# fits. Neither do the cached pages, which have a key of their own.

# %%
rekindle_cache(*explain, "--page-size=32")
# %% [markdown]
# A session says the same about itself: for each part of a key that differs, `session.restored.differences` has its
# value here and there. Compiling may be worse than failing, as on a machine that is paid by the minute. Then
# `restore="require"` refuses to open if something would have to be compiled.
#
# The kernel that is still running tries both. `precompile="lazy"` makes each program at its first use, so nothing is
# compiled here but the one program that makes the empty pool.

# %%
DIFFER = """
import warnings

OTHER = SETTINGS | {"page_size": 32}
with warnings.catch_warnings(record=True, action="always") as warned:
    try:
        await rekindle.open("smollm2-135m-instruct", **OTHER, restore="require")
    except rekindle.NotRestored as error:
        refusal = str(error)
    other = await rekindle.open("smollm2-135m-instruct", **OTHER, precompile="lazy")
    restored = other.restored
    await other.close()
print(json.dumps({
    "refusal": refusal,
    "warning": str(warned[0].message),
    "differences": restored.differences,
    "tokens": restored.tokens,
}))
"""

differ = json.loads(await kernel.run(DIFFER))
print("NotRestored:", differ["refusal"])
print("\nRuntimeWarning:", differ["warning"].replace(str(cache), "CACHE"))
print("\nsession.restored.differences")
for part, (value, stored) in differ["differences"].items():
    print(f"  {part}\n    here   {value}\n    there  {stored}")

assert "page_size" in differ["refusal"]
assert "page_size" in differ["warning"]
assert '"page_size": 32' in differ["differences"]["statics"][0]
assert '"page_size": 64' in differ["differences"]["statics"][1]
assert differ["tokens"] == 0

# %% [markdown]
# ## A damaged byte
#
# A process may be killed while it writes, and disks fail. Everything is written under a temporary name first, and
# renamed when it is complete. Every byte is checked against a digest before it is used. What does not match is dropped
# with a warning, and made anew.
#
# Now we change one byte in a program, and one in the cached pages:

# %%
await kernel.kill()


def damage(directory):
    """Change a byte in the middle of the largest file."""
    largest = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


damage(cache / "programs" / next(entry.digest for entry in entries if entry.parts["program"] == "enter"))
damage(cache / "snapshots")
rekindle_cache("verify", status=1)

# %% [markdown]
# `verify` only looks. The next kernel needs what is damaged. It compiles that one program. Pages are stored several to
# an entry, and an entry is dropped as a whole when a damaged page is read from it. All its pages that were not read
# before are then computed again. The kernel warns of both, and gives the same answers as before.

# %%
kernel = await Kernel.start()
warned = await kernel.run(OPEN) + await kernel.run(ASK)
healed = json.loads(await kernel.run(TELL))
await kernel.kill()

print(f"programs: {healed['loaded']} loaded, {healed['compiled']} compiled")
print(f"tokens of both prompts that came from disk: {healed['both from disk']}, and {warm['both from disk']} before")
print(warned.replace(str(cache), "CACHE"))
rekindle_cache("verify")

assert healed["compiled"] == 1
assert healed["both from disk"] < warm["both from disk"]
assert healed["tokens"] == cold["tokens"]

# %% [markdown]
# ## This kernel
#
# So far this kernel has only watched. Now it opens the model itself, with your own cache directory. The first time that
# you run this notebook, it compiles. If you restart the kernel and run all cells again, it does not, and the prompt is
# found on disk.

# %%
here.cleanup()

import rekindle

session = await rekindle.open("smollm2-135m-instruct", **SETTINGS)
LAMPS = " ".join(f"The lamp of lighthouse {number} burns all night." for number in range(1, 16))
answer = await session.generate(LAMPS + " The lamp of", max_tokens=8, temperature=0)
await session.precompiled(progress=False)
await session.save(progress=False)
restored, stats = session.restored, session.stats
await session.close()
restored

# %%
print(f"cached tokens of the prompt's {answer.usage.prompt_tokens}: {answer.cached}")
assert restored.programs + restored.compiled == stats.programs == 6
assert stats.unexpected_compilations == 0
assert answer.cached_tokens in (0, answer.usage.prompt_tokens // 64 * 64)
