# %% [markdown]
# # The first minute on Colab
#
# This notebook opens a model of a billion parameters on a free machine of Colab, asks it something, and does so again
# after a restart of the kernel. At its end is a table of what that took.
#
# Choose a GPU (T4) or a TPU (v5e-1) by *Change runtime type* in the menu *Runtime*, and run the cells in order. The one
# above installs Rekindle. It changes none of Colab's packages, so that no restart is needed after it.
#
# It was not run on these machines yet. The outputs below are of a CPU, with the smaller model of the other tutorials.

# %%
import time

began = time.perf_counter()
import jax

import rekindle

seconds = {"import": time.perf_counter() - began}
MODEL = "smollm2-135m-instruct" if jax.default_backend() == "cpu" else "TinyLlama/TinyLlama-1.1B-Chat-v1.0"

# %% [markdown]
# The first time, the model is downloaded (2.2 GB), and its programs are compiled. Both stay on the disk of the machine,
# as long as it is yours.

# %%
began = time.perf_counter()
session = await rekindle.open(MODEL, max_context=1024, max_running=4, max_prefill_tokens=64, show_restored=True)
seconds["open"] = time.perf_counter() - began

# %% [markdown]
# A page has the keys and values of 64 tokens of a prompt. This prompt has a few of them.

# %%
notes = "You answer questions in a word or two. " + " ".join(f"Note {number} is empty." for number in range(1, 41))
chat = [{"role": "system", "content": notes}, {"role": "user", "content": "What is the capital of France?"}]
answer = await session.generate(chat, max_tokens=32)
seconds["first token"], seconds["answer"] = answer.timings.first_token, answer.timings.total
answer

# %% [markdown]
# Programs and pages are stored by themselves while the engine is idle. These two calls wait for that, and the file
# remembers this start for the table.

# %%
import json
from pathlib import Path

await session.precompiled(progress=False)
await session.save(progress=False)
found = {
    "programs compiled": session.restored.compiled,
    "programs loaded": session.restored.programs,
    "prompt tokens": answer.usage.prompt_tokens,
    "of them from disk": answer.cached.disk,
}
starts_file = Path("starts.json")
starts = json.loads(starts_file.read_text()) if starts_file.exists() else []
starts.append({"seconds": seconds, "found": found})
starts_file.write_text(json.dumps(starts))
session.restored

# %% [markdown] tags=["restart"]
# ## Restart the kernel now
#
# Choose *Restart session* from the menu *Runtime* (*Restart Kernel…* in Jupyter), and run the cells above again. The
# process is a new one: its programs are loaded, and the pages of the prompt are found on disk.

# %% [markdown]
# ## What came back

# %%
import platform

import jaxlib

first, again = starts[0], starts[-1]
device = jax.devices()[0]
memory = (device.memory_stats() or {}).get("bytes_limit")
size = f", {memory / 2**30:.1f} GiB for JAX" if memory else ""
print(f"{MODEL} on {device.device_kind}{size}")
print(f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {jaxlib.__version__}")
print()
print("| | first start | after the restart |")
print("|---|---|---|")
for step in first["seconds"]:
    print(f"| {step} | {first['seconds'][step]:.2f} s | {again['seconds'][step]:.2f} s |")
for what in first["found"]:
    print(f"| {what} | {first['found'][what]} | {again['found'][what]} |")

# %%
assert len(starts) > 1, "restart the kernel, and run the cells above again"
assert again["found"]["programs compiled"] == 0
assert again["found"]["of them from disk"] > 0
await session.close()

# %% [markdown]
# Was this a T4 or a v5e-1? The guide on
# [troubleshooting](guides/troubleshooting.md#platforms) has no such table yet: please send yours.
# Next: [01 First words](01_first_words.ipynb).
