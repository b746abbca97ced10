# %% [markdown]
# # 20 · Ask the documentation
#
# A model that answers from its memory is often wrong, a small one mostly. Give it the right passage, and it only has to
# read. This notebook takes 1,000 passages from the documentation of Python's standard library, which every Python has
# with it, and asks them questions in three steps: an encoder **retrieves** ten passages, a **ranking** puts the best
# first, and a language model **answers** and names its source. Both models run side by side in this process. It builds
# on tutorial 12.

# %%
import asyncio
import importlib
import inspect
import time

import numpy as np
import pictures  # of these tutorials, beside this notebook

import rekindle

encoder = await rekindle.open(
    "sentence-transformers/all-MiniLM-L6-v2", precompile="lazy", restore="off", progress=False
)
session = await rekindle.open(
    "smollm2-135m-instruct",
    num_pages=129,
    max_context=1024,
    max_running=8,
    precompile="lazy",
    restore="off",  # nothing is found that an earlier run has computed
    progress=False,
)

# %% [markdown]
# ## A thousand passages
#
# A passage is the documentation of a function, a class or a method, with its name in front.

# %%
MODULES = """os.path base64 bisect calendar collections contextlib copy csv datetime difflib fnmatch functools getpass
glob gzip hashlib heapq hmac html ipaddress itertools json math mimetypes pathlib pickle platform pprint queue random
re sched secrets shelve shlex shutil signal statistics string struct subprocess tempfile textwrap threading time
timeit urllib.parse weakref webbrowser zipfile zlib os"""


def documented():
    """Yield the name of each public function, class and method of the modules, and its documentation."""
    for name in MODULES.split():
        for key, value in vars(importlib.import_module(name)).items():
            if not key.startswith("_") and callable(value):
                yield f"{name}.{key}", value.__doc__
                for method, function in vars(value).items() if inspect.isclass(value) else ():
                    if not method.startswith("_") and callable(function):
                        yield f"{name}.{key}.{method}", function.__doc__


texts = {}
for name, text in documented():
    if isinstance(text, str) and len(text.split()) > 2:
        texts.setdefault(inspect.cleandoc(text), name)  # the same documentation may have several names
names = list(texts.values())[:1000]
passages = [f"{name}: {' '.join(text.split()[:120])}" for text, name in texts.items()][:1000]
print(f"{len(passages):,} passages, {sum(map(len, passages)):,} characters")
pictures.table([(passage,) for passage in passages[::250]], head=("passage",))

# %% [markdown]
# ## Retrieve
#
# `embed` gives a vector for each passage, as sentence-transformers would. This is the only step whose cost grows with
# the number of passages, and it is done once: `np.save` keeps the vectors. A question costs one vector more and a
# product of matrices.

# %%
costs = []


def cost(step, started, model, before):
    """Note the tokens that a step computed, and its seconds."""
    tokens = model.stats.scheduler.computed_tokens - before
    costs.append((step, f"{tokens:,}", f"{time.perf_counter() - started:.2f}"))


await encoder.embed("The first call compiles the programs, which later starts read from disk.")
started, before = time.perf_counter(), encoder.stats.scheduler.computed_tokens
vectors = await encoder.embed(passages)
cost("embed 1,000 passages", started, encoder, before)
vectors.shape, vectors.dtype

# %%
QUESTIONS = {  # each with the passages that answer it
    "How do I copy a whole directory with its files?": ["shutil.copytree"],
    "I need the five largest numbers of a list.": ["heapq.nlargest"],
    "Show a website to the user.": ["webbrowser.open", "webbrowser.open_new", "webbrowser.open_new_tab"],
    "My function is slow and is called with the same arguments again and again.": ["functools.lru_cache"],
    "Remove the spaces that all lines begin with.": ["textwrap.dedent"],
    "The user misspelled a word: which known word is meant?": ["difflib.get_close_matches"],
    "How do I delete a directory that is not empty?": ["shutil.rmtree"],
    "How can I make a token that nobody can guess?": ["secrets.token_urlsafe", "secrets.token_hex"],
    "Wait for half a second.": ["time.sleep"],
    "What is the middle value of some numbers?": ["statistics.median"],
    "All orders in which three people can sit on a bench.": ["itertools.permutations"],
    "Insert a number into a sorted list so that it stays sorted.": ["bisect.insort_right", "bisect.insort_left"],
    "How much free space has the disk?": ["shutil.disk_usage"],
    "Run another program and read what it prints.": ["subprocess.check_output", "subprocess.run"],
    "How many times does each word occur?": ["collections.Counter"],
    "Make a file that disappears when it is closed.": ["tempfile.TemporaryFile", "tempfile.NamedTemporaryFile"],
}
started, before = time.perf_counter(), encoder.stats.scheduler.computed_tokens
queries = await encoder.embed(list(QUESTIONS))
found = np.argsort(-queries @ vectors.T, axis=1)[:, :20]  # vectors have length 1: products are cosines
cost(f"retrieve 20 passages for each of {len(QUESTIONS)} questions", started, encoder, before)


def places(lines):
    """Return the place of the first right passage for each question, from 1 on; infinity if it is not there."""
    rights = [[names[at] in right for at in line] for line, right in zip(lines, QUESTIONS.values(), strict=True)]
    return np.array([right.index(True) + 1 if True in right else np.inf for right in rights])


def quality(places):
    """Return how often a right passage is first and among the first three, and the mean of the inverse places."""
    return f"{(places == 1).sum()} of {len(places)}", f"{(places <= 3).sum()}", f"{(1 / places).mean():.2f}"


pictures.table([("retrieved", *quality(places(found)))], head=("", "first", "in the first three", "mean inverse place"))

# %% [markdown]
# ## Rank
#
# A vector knows nothing of the question. A ranking reads both together, so it costs more and is used for the passages
# found alone. The best rankings come from rerankers, models of their own, and `rerank` asks them:
#
# ```python
# judge = await rekindle.open("cross-encoder/ms-marco-MiniLM-L6-v2")
# ranking = await judge.rerank(question, [passages[at] for at in line])
# ```
#
# Here, the model that answers ranks too: a passage that answers a question makes it a likely one to ask, and `score`
# gives this likelihood. Such a small model is no better judge than the vectors, but its mistakes are others. So both
# orders are joined: each gives a passage `1 / (10 + place)`, and the sum decides (reciprocal rank fusion).

# %%
started, before = time.perf_counter(), session.stats.scheduler.computed_tokens


async def likelihood(passage, question):
    """Return the log-probability of a question after a passage."""
    return (await session.score(f"{passage}\n\nQuestion:", [f" {question}"])).logprobs[0]


likely, ranked = [], []
for question, line in zip(QUESTIONS, found, strict=True):
    scores = np.array(await asyncio.gather(*(likelihood(passages[at], question) for at in line)))
    likely.append(line[np.argsort(-scores)])
    by_likelihood = np.argsort(np.argsort(-scores))  # the place of each passage in this order
    ranked.append(line[np.argsort(-1 / (10 + by_likelihood) - 1 / (10 + np.arange(len(line))))])
cost(f"rank 20 passages for each of {len(QUESTIONS)} questions", started, session, before)
orders = {"retrieved": found, "by likelihood": likely, "both": ranked}
pictures.table(
    [(name, *quality(places(lines))) for name, lines in orders.items()],
    head=("", "first", "in the first three", "mean inverse place"),
)

# %%
rows = [
    (question, passages[line[0]][:80] + "…", f"{before:.0f} → {after:.0f}" if before < np.inf else "not retrieved")
    for question, line, before, after in zip(QUESTIONS, ranked, places(found), places(ranked), strict=True)
]
pictures.table(rows, head=("question", "first passage", "place of a right one, retrieved → ranked"))

# %% [markdown]
# ## Answer, with the source
#
# The model reads the best passage, and its answer is begun for it: with the name of the source, which so cannot be made
# up. `continue_final_message` has it go on from there.


# %%
async def answer(question, line):
    """Return an answer out of the best passage, and a link to its source."""
    name, passage = names[line[0]], passages[line[0]]
    request = f"{passage}\n\nQuestion: {question}\nAnswer in one sentence."
    start = f"Use {name}, which"
    result = await session.generate(
        [{"role": "user", "content": request}, {"role": "assistant", "content": start}],
        continue_final_message=True,
        stop=[". ", "\n"],
        max_tokens=60,
        temperature=0,
    )
    module = next(module for module in MODULES.split() if name.startswith(f"{module}."))
    return f"{start} {result.text.strip()}", f"https://docs.python.org/3/library/{module}.html#{name}"


started, before = time.perf_counter(), session.stats.scheduler.computed_tokens
asked = [(list(QUESTIONS)[at], ranked[at]) for at in (1, 5, 7, 9, 10, 12)]
answers = await asyncio.gather(*(answer(question, line) for question, line in asked))
cost(f"answer {len(asked)} questions", started, session, before)
rows = [(question, text, source) for (question, _), (text, source) in zip(asked, answers, strict=True)]
pictures.table(rows, head=("question", "answer", "source"))

# %% [markdown]
# An answer is as good as the passage: asked how to delete a directory that is not empty, this chain names
# `pathlib.Path.rmdir`, whose directory must be empty. Larger models read three passages and choose; the ranking is
# where a model of its own helps most.
#
# ## What it costs
#
# Tokens are those that the models computed; the prefix cache had the others.

# %%
pictures.table(costs, head=("step", "tokens", "seconds"))

# %%
await session.close()
await encoder.close()
