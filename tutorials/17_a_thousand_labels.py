# %% [markdown]
# # 17 · A thousand labels
#
# A model can label texts without writing a word: `session.decide` asks a typed question, and reads the probabilities of
# the possible answers in one step. `session.map` does so for as many texts as you have. This notebook labels 1,000
# texts whose answers are known, finds that the probabilities of a small model mean little as they are, and makes them
# mean something with 200 known answers. It builds on tutorial 12.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pictures  # of these tutorials, beside this notebook

import rekindle

session = await rekindle.open(
    "smollm2-135m-instruct",
    page_size=16,
    num_pages=257,
    max_context=256,
    max_running=16,
    max_prefill_tokens=512,
    prefill_buckets=[512],
    decode_buckets=[16],
    precompile="lazy",
    restore="off",  # nothing is found that an earlier run has computed
    progress=False,
)

# %% [markdown]
# ## Texts with known answers
#
# The texts are reviews of meals, put together by chance from parts that are good or bad. So each has a true label, and
# nobody had to read it. Half of them use strong words, the others mild ones.

# %%
MEALS = ["soup", "bread", "pizza", "salad", "rice", "cake", "pasta", "coffee", "tea", "curry", "stew", "pie"]
PLACES = ["restaurant", "cafe", "hotel", "bakery", "food truck"]
WORDS = {
    (True, "strong"): ["was wonderful", "was excellent", "tasted great", "was the best I ever had", "was delicious"],
    (True, "mild"): ["was fine", "was nice enough", "was better than I expected", "was worth the money"],
    (False, "strong"): ["was awful", "was terrible", "tasted like soap", "was the worst I ever had", "was disgusting"],
    (False, "mild"): ["was not my taste", "was a bit dull", "was worse than I expected", "was not worth the money"],
}
ENDS = {
    True: ["", "", "I will come back.", "My friends loved it too.", "Thank you!", "The staff smiled."],
    False: [
        "",
        "",
        "I will not come back.",
        "My friends hated it too.",
        "I want my money back.",
        "The cook was rude.",
    ],
}
chance = np.random.default_rng(0)


def review():
    """Return a review and its true label."""
    good, strength = bool(chance.integers(2)), str(chance.choice(["strong", "mild"]))
    meal, place, words = (chance.choice(each) for each in (MEALS, PLACES, WORDS[good, strength]))
    text = f"The {meal} at the {place} {words}. {chance.choice(ENDS[good])}".strip()
    return {"text": text, "good": good, "strength": strength}


reviews = [review() for _ in range(1000)]
good = np.array([each["good"] for each in reviews])
pictures.table([(each["text"], each["good"]) for each in reviews[:4]], head=("text", "good"))

# %% [markdown]
# ## One question for all
#
# A question is a `Choice` among options, a `YesNo` or a `Score`. The prompt is the text and then the question, in the
# model's chat template. Its answer costs one step, and no text is generated. The beginning of the template is the same
# in all prompts, so its page is computed once. Each answer goes into a file as it comes.

# %%
path = Path(tempfile.mkdtemp()) / "labels.jsonl"
ask = {
    "template": "Review: {text}",
    "questions": {"positive": rekindle.YesNo("Is the review positive?")},
    "path": path,
}
before = session.stats.scheduler.computed_tokens
labels = await session.map(reviews, **ask)
computed = session.stats.scheduler.computed_tokens - before
tokens = sum(decisions[0].prompt_tokens for decisions in labels)
print(f"{tokens:,} tokens of prompts, {computed:,} computed")
labels

# %% [markdown]
# A result has the answer, the probability of each option among the options, a confidence, and the mass: the probability
# of all options together among all tokens. The mass says how far the model follows the form.

# %%
labels[0][0]

# %%
said = np.array([decisions[0].probabilities["yes"] for decisions in labels])
mass = np.array([decisions[0].mass for decisions in labels])


def facts(probabilities, true):
    """Return the accuracy at one half, the share of pairs in the right order, and the Brier score."""
    accuracy = ((probabilities > 0.5) == true).mean()
    order = (probabilities[true][:, None] > probabilities[~true][None]).mean()
    return f"{accuracy:.2f}", f"{order:.2f}", f"{((probabilities - true) ** 2).mean():.3f}"


print(f"probabilities of yes from {said.min():.2f} to {said.max():.2f}, mean mass {mass.mean():.2f}")
head = ("", "right", "pairs in order", "Brier score")
pictures.table([("as the model says", *facts(said, good))], head=head)

# %% [markdown]
# This model says "no" to everything: with the threshold at one half, the labels are those of a coin. But of a good and
# a bad review, the good one mostly has the larger probability of "yes" (the share of pairs in the right order, also
# called AUC). So the model knows something, and its probabilities are not what they seem.
#
# ## A reliability curve
#
# A probability means something if, of all texts with the probability 0.7, seven in ten are positive. The curve shows
# this: the texts are sorted by probability and split into ten groups. Each point has the mean probability of a group,
# and the share of truly positive texts in it. Good points lie on the diagonal.


# %%
def curve(probabilities, true, groups=10):
    """Return the mean probability and the share of true labels of each group."""
    order = np.array_split(np.argsort(probabilities, kind="stable"), groups)
    return [(float(probabilities[group].mean()), float(true[group].mean())) for group in order]


pictures.reliability({"as the model says": curve(said, good)})

# %% [markdown]
# ## Calibration
#
# Two numbers put this right (Platt, 1999): `sigmoid(a * log-odds + b)`. They are fitted by logistic regression to texts
# with known labels: here the first 200, which you would read yourself. The other 800 show whether it worked.


# %%
def log_odds(probabilities):
    return np.log(probabilities / (1 - probabilities))


def fit(probabilities, true, steps=30):
    """Return the factor and the summand of the log-odds with the largest likelihood, by Newton's method."""
    centre, scale = log_odds(probabilities).mean(), log_odds(probabilities).std()
    inputs = np.stack([(log_odds(probabilities) - centre) / scale, np.ones(len(true))], axis=1)
    weights = np.zeros(2)
    for _ in range(steps):
        guess = 1 / (1 + np.exp(-inputs @ weights))
        curvature = (inputs * (guess * (1 - guess))[:, None]).T @ inputs
        weights -= np.linalg.solve(curvature, inputs.T @ (guess - true))
    return weights[0] / scale, weights[1] - weights[0] * centre / scale


known, rest = slice(0, 200), slice(200, None)
factor, summand = fit(said[known], good[known])
calibrated = 1 / (1 + np.exp(-factor * log_odds(said) - summand))
print(f"a = {factor:.1f}, b = {summand:.1f}")
pictures.table(
    [
        ("as the model says", *facts(said[rest], good[rest])),
        ("calibrated", *facts(calibrated[rest], good[rest])),
    ],
    head=head,
)

# %%
pictures.reliability(
    {
        "as the model says": curve(said[rest], good[rest]),
        "calibrated": curve(calibrated[rest], good[rest]),
    }
)

# %%
gaps = {
    name: np.mean([abs(mean - share) for mean, share in curve(each[rest], good[rest])])
    for name, each in {"said": said, "calibrated": calibrated}.items()
}
assert gaps["calibrated"] < 0.5 * gaps["said"]
assert ((calibrated[rest] > 0.5) == good[rest]).mean() > 0.6

# %% [markdown]
# The order of the texts is the same as before, so calibration finds no new knowledge. It makes the threshold and the
# probabilities right. A factor far above 1 says that the model is much less sure than it could be. A larger model needs
# a smaller correction, and the curve shows how large.
#
# ## Labels to trust
#
# Calibrated probabilities say which labels to keep and which texts to read. The surer the kept labels, the fewer they
# are:

# %%
sure = np.maximum(calibrated, 1 - calibrated)
rows = []
for share in (1.0, 0.5, 0.25, 0.1):
    kept = np.argsort(-sure[rest], kind="stable")[: int(share * 800)]
    expected, right = sure[rest][kept].mean(), ((calibrated[rest] > 0.5) == good[rest])[kept].mean()
    rows.append((f"{len(kept)} surest of 800", f"{expected:.2f}", f"{right:.2f}"))
pictures.table(rows, head=("labels", "expected to be right", "right"))

# %% [markdown]
# The surest labels are right even more often than expected: two numbers move and stretch the curve, and do not bend it.
# And where does the model fail? Mild words are harder than strong ones:

# %%
strength = np.array([each["strength"] for each in reviews])[rest]
rows = [(name, *facts(calibrated[rest][strength == name], good[rest][strength == name])) for name in ("strong", "mild")]
pictures.table(rows, head=("words", *head[1:]))

# %% [markdown]
# ## After a restart
#
# The file has all answers. The same call reads them there, and computes nothing:

# %%
before = session.stats.scheduler.computed_tokens
again = await session.map(reviews, **ask)
print(f"{session.stats.scheduler.computed_tokens - before} tokens computed")
await session.close()

# %%
assert session.stats.scheduler.computed_tokens == before
assert [decisions[0].probabilities["yes"] for decisions in again] == said.tolist()

# %% [markdown]
# For your own texts: write the question, read a few hundred texts, draw the curve, and calibrate if it leaves the
# diagonal. Several questions (`questions={"positive": ..., "topic": ...}`) cost a step each, and only the last page of
# the text is computed again. [The guide](guides/judging_texts.md#decisions) has the forms of questions, and the same
# over HTTP.
