# %% [markdown]
# # 12 · Judging texts
#
# A language model knows more of a text than how it might go on. Its hidden states say what the text is about, and its
# probabilities say how well one text follows another. This notebook finds documents for questions in three ways, and
# then evaluates the model itself. All of it runs on the programs that generate, and out of the same prefix cache. It
# builds on tutorial 02 for hidden states and logits.

# %%
import numpy as np
import pictures  # of these tutorials, beside this notebook

import rekindle

session = await rekindle.open(
    "smollm2-135m-instruct",
    page_size=16,
    num_pages=129,
    max_context=512,
    max_running=8,
    max_prefill_tokens=128,
    prefill_buckets=[128],
    decode_buckets=[8],
    precompile="lazy",
    restore="off",  # nothing is found that an earlier run has computed
    progress=False,
)
DOCUMENTS = {
    "lighthouse": "A lighthouse is a tower with a bright light at the top. It shows ships where the coast is.",
    "bread": "Bread is baked from flour, water, salt and yeast. The yeast makes the dough rise.",
    "bees": "Bees collect nectar from flowers and make honey of it. They live together in a hive.",
    "moon": "The moon goes round the earth in about 27 days. It has no air and no water.",
    "python": "Python is a programming language. Its programs are run by an interpreter.",
    "volcano": "A volcano is a mountain from which molten rock comes. The molten rock is called lava.",
    "chess": "Chess is a game for two players. Each has sixteen pieces, and the king must not be lost.",
    "rain": "Rain falls when drops of water in a cloud become too heavy.",
}
QUESTIONS = {
    "How do sailors find the coast at night?": "lighthouse",
    "What makes dough rise?": "bread",
    "Which insects make honey?": "bees",
    "How long does the moon take to go round the earth?": "moon",
    "What runs the programs of a language?": "python",
    "What is molten rock called?": "volcano",
    "Which game has a king that must not be lost?": "chess",
    "Why does water fall from clouds?": "rain",
}
names, texts = list(DOCUMENTS), list(DOCUMENTS.values())

# %% [markdown]
# ## Embeddings
#
# `session.embed` gives a vector for each text: here, the hidden state of its last token after the last norm, brought
# to length 1. (A model that was trained for embeddings says in its files how it wants this done, and `embed` follows
# them.) The product of two such vectors is the cosine of their angle. For each question we take the document with the
# largest.

# %%
documents = await session.embed(texts)
questions = await session.embed(list(QUESTIONS))
documents.shape, questions.dtype


# %%
def table(scores, form):
    """Return a table of a score for each question and document; the largest of each question is marked."""
    rows = []
    for question, line in zip(QUESTIONS, scores, strict=True):
        cells = [f"{score:{form}}" for score in line]
        cells[line.argmax()] += " ◀" if names[line.argmax()] == QUESTIONS[question] else " ✗"
        rows.append((question, *cells))
    right = sum(names[line.argmax()] == name for line, name in zip(scores, QUESTIONS.values(), strict=True))
    print(f"{right} of {len(QUESTIONS)} questions find their document")
    return pictures.table(rows, head=("", *names))


table(questions @ documents.T, ".2f")

# %% [markdown]
# All cosines are large, because the states of a model that was trained to predict tokens share a strong common part. It
# says nothing of the subject. When we subtract the mean of the documents, the rest decides.

# %%
centre = documents.mean(0)


def centred(vectors):
    """Return vectors without their common part, at length 1 again."""
    rest = vectors - centre
    return rest / np.linalg.norm(rest, axis=1, keepdims=True)


table(centred(questions) @ centred(documents).T, ".2f")

# %%
right = [names[at] for at in (centred(questions) @ centred(documents).T).argmax(1)]
assert right == list(QUESTIONS.values())

# %% [markdown]
# ## Likelihoods
#
# A document that answers a question makes it a likely one to ask. `session.score` gives the log-probability of a text
# after a prompt. Each document is a prompt here, and all questions are its options. So a document is computed once, and
# each question costs its own tokens alone.

# %%
likelihoods = np.empty((len(QUESTIONS), len(names)))
for at, text in enumerate(texts):
    scores = await session.score(f"{text}\nQuestion:", [f" {question}" for question in QUESTIONS])
    likelihoods[:, at] = scores.logprobs
table(likelihoods, ".1f")

# %%
assert [names[at] for at in likelihoods.argmax(1)] == list(QUESTIONS.values())

# %% [markdown]
# Rerankers go the other way: they are asked whether a document answers the question, and the probability of "yes" is
# the score. `session.rerank` asks as Qwen3-Reranker was trained to be asked. SmolLM2 was not, and its answers hardly
# depend on the document:

# %%
await session.rerank("How do sailors find the coast at night?", texts)

# %% [markdown]
# ## Perplexity
#
# Perplexity says how surprising a whole text is: it is the exponential of the mean loss of a token. The same words in
# another order are far more surprising. A text of any length is scored in windows.

# %%
text = " ".join(texts)
shuffled = text.split()
np.random.default_rng(0).shuffle(shuffled)
plain, mixed = await session.perplexity(text), await session.perplexity(" ".join(shuffled))
print(f"as it is {plain.perplexity:.0f}, shuffled {mixed.perplexity:.0f}")

# %%
assert mixed.perplexity > 10 * plain.perplexity

# %% [markdown]
# `logprobs` has each token's own part. The places where the text is hardest to guess are those where a new subject
# begins:

# %%
scored = plain.logprobs  # None for the first token, which nothing stands before
hardest = sorted(range(1, len(scored)), key=lambda place: scored[place].logprob)[:8]
tokens = session.encode(text)
for place in sorted(hardest):
    before = session.decode(tokens[max(0, place - 6) : place])
    print(f"{scored[place].logprob:6.1f}  {before!r} → {scored[place].text!r}")

# %% [markdown]
# ## An evaluation
#
# Multiple-choice tests of models are scores of continuations too: the model's answer is the option with the best
# log-probability. For options of different lengths, that is divided by their bytes (`ranked("byte")`).

# %%
TEST = [
    ("The capital of France is", ["London", "Paris", "Rome", "Berlin"], 1),
    ("Water freezes at a temperature of zero degrees", ["Fahrenheit", "Kelvin", "Celsius", "Newton"], 2),
    ("The opposite of hot is", ["warm", "cold", "wet", "high"], 1),
    ("A week has", ["five days", "seven days", "ten days", "twelve months"], 1),
    ("The largest planet of the solar system is", ["Mars", "the Earth", "Jupiter", "the moon"], 2),
    ("Romeo and Juliet was written by", ["William Shakespeare", "Isaac Newton", "Mozart", "Plato"], 0),
    ("Plants make sugar from light. This is called", ["evaporation", "photosynthesis", "gravity", "rust"], 1),
    ("The square root of 81 is", ["seven", "eight", "nine", "ten"], 2),
]
rows, right = [], 0
for question, options, true in TEST:
    scores = await session.score(question, [f" {option}" for option in options])
    best = scores.ranked("byte")[0].text.strip()
    right += best == options[true]
    rows.append((question, best, "✓" if best == options[true] else f"✗ ({options[true]})"))
print(f"{right} of {len(TEST)} right")
pictures.table(rows, head=("question", "answer", ""))

# %% [markdown]
# For the known tests there is [lm-eval](https://github.com/EleutherAI/lm-evaluation-harness), which runs in this
# process: `rekindle lm-eval --model rekindle --model_args pretrained=MODEL --tasks ...` in a terminal, or
# `lm_eval.simple_evaluate(model=RekindleLM(session=session), tasks=[...])` in a cell.
#
# ## Thousands of prompts
#
# `session.map` is for as many prompts as you have. It reads them one by one, keeps a window of them in the engine, and
# writes each answer to a file as it comes. Here it is stopped after three of the eight questions, as a restart of the
# kernel would stop it. The second call finds what is in the file, and asks for the others alone.

# %%
import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "answers.jsonl"
ask = {
    "template": "Question: {text}\nThe subject of this question is",
    "path": path,
    "choice": [" nature", " food", " machines", " games"],
    "window": 2,  # so many are in the engine at once; the default is twice max_running
    "temperature": 0,
    "progress": False,
}
stopped = session.map(list(QUESTIONS), **ask)
async for _ in stopped:
    if len(path.read_text().splitlines()) == 3:
        break
stopped.close()
ended = len(path.read_text().splitlines())
results = await session.map(list(QUESTIONS), **ask)
for question, answer in zip(QUESTIONS, results, strict=True):
    print(f"{question:51}{answer.parsed}")
await session.close()

# %%
assert 3 <= ended < len(QUESTIONS)
assert len(path.read_text().splitlines()) == len(QUESTIONS)
assert all(answer.parsed for answer in results)
