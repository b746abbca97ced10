# %% [markdown]
# # 11 · Structured output and tools
#
# A program that reads what a model writes wants it in a form: JSON with certain keys, one of a few words, a date. You
# can ask the model for that form, and a small model will often miss it. This notebook holds the model to it instead.
# You see how the vocabulary is masked before each token, and how the same masks make a model call functions. It builds
# on tutorial 02 for tokens and sampling.

# %%
import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pictures  # of these tutorials, beside this notebook

import rekindle

MODEL = "smollm2-135m-instruct"
SETTINGS = {
    "page_size": 16,
    "num_pages": 129,
    "max_context": 512,
    "max_running": 8,
    "max_prefill_tokens": 128,
    "prefill_buckets": [128],
    "decode_buckets": [8],
    "precompile": "lazy",
    "restore": "off",  # nothing is found that an earlier run has computed
    "progress": False,
}
session = await rekindle.open(MODEL, **SETTINGS)

# %% [markdown]
# ## A form
#
# First we only ask for JSON. A model of 135 million parameters tries:

# %%
QUESTION = [
    {
        "role": "user",
        "content": "Extract the name, the year of birth and the job as JSON. "
        "Text: Ada Holm, born in 1841, was the lighthouse keeper of Lindvik.",
    }
]
free = await session.generate(QUESTION, max_tokens=80, temperature=0)
print(free)

# %%
try:
    json.loads(free.text)
except json.JSONDecodeError as error:
    print(f"JSONDecodeError: {error}")

# %% [markdown]
# No program can use that. The JSON is followed by a remark, there is an age that nobody asked for and that the text
# does not tell, and the keys are the model's own choice. The next answer would have others.

# %% [markdown]
# Now the same question with a **schema**. A dataclass is one, and so are pydantic's models, `TypedDict`s, and JSON
# schemas as dicts. Types need pydantic (`pip install pydantic`); dicts need nothing.


# %%
@dataclass
class Person:
    """A person whom a text mentions."""

    name: str
    born: int
    job: str


answer = await session.generate(QUESTION, json_schema=Person, max_tokens=60, temperature=0)
answer

# %% [markdown]
# `answer.text` is JSON of the schema, and `answer.parsed` is the object that it stands for. The form also helped with
# the content: there is no place for an invented age. But what fills the form is the model's own, and a small model may
# fill in nonsense.

# %%
answer.parsed

# %%
assert answer.parsed == Person(name="Ada Holm", born=1841, job="Lindvik Lighthouse keeper")
assert answer.finish_reason == "stop"

# %% [markdown]
# Three other keywords say a form. `choice` lists texts, `regex` is a regular expression, and `grammar` is a grammar.
# Here are questions, first without the form and then with it:

# %%
FORMS = {
    "Review: The food was cold and the waiter was rude.\nIs the review positive or negative? Answer with one word.": {
        "choice": ["positive", "negative"]
    },
    "In which year did the first human walk on the moon? Answer with the year only.": {"regex": r"(19|20)\d\d"},
    "Name three fruits.": {"grammar": 'start: LINE ("\\n" LINE)~2\nLINE: /[1-3]\\. [A-Z][a-z]+/'},
}
rows = []
for question, form in FORMS.items():
    message = [{"role": "user", "content": question}]
    free = await session.generate(message, max_tokens=40, temperature=0)
    fits = await session.generate(message, max_tokens=40, temperature=0, **form)
    rows.append((question, free.text, *form, fits.text))
pictures.table(rows, head=("question", "free", "form", "with the form"))

# %% [markdown]
# The first two answers were not only in another form, but wrong. A form leaves the model no words to talk itself into
# an error. Where it keeps to the form by itself, as with the fruits, the form changes nothing.

# %%
assert [row[-1] for row in rows] == ["negative", "1969", rows[-1][1]]

# %% [markdown]
# ## Masks
#
# A form is compiled to something that is asked, after every token: *which tokens may come next?* The answer is a
# **mask** with one bit for each token of the vocabulary. Tokens without a bit get a logit of minus infinity, and then
# the next token is drawn as always. So each output has the form, at any temperature, and no token is drawn twice.
#
# The library [llguidance](https://github.com/guidance-ai/llguidance) compiles the form and follows the tokens. Here we
# use it as the engine does, over the tokens of the answer above. The form is the JSON schema of `Person`, with the
# spaces of `json.dumps`.

# %%
from llguidance import LLMatcher, LLTokenizer
from pydantic import TypeAdapter

VOCABULARY = 49_152
END = session.encode("<|im_end|>")[0]
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

schema = TypeAdapter(Person).json_schema()
tokenizer = LLTokenizer(session.tokenizer.backend.to_str(), n_vocab=VOCABULARY, eos_token=END)
matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema, overrides=SPACES))
forced = matcher.compute_ff_tokens()
print(forced, repr(session.decode(forced)))

# %% [markdown]
# The start of the output is not a question at all: JSON of this schema has to begin with `{"name":`. Such tokens are
# **forced**. The engine does not generate them one by one. It computes them together with the prompt. After them there
# is a mask. We go on with the tokens that the model has chosen, and keep each mask.


# %%
def mask_of(matcher):
    """Compute the mask of the next token, as booleans (vocabulary,)."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(bits, bitorder="little")[:VOCABULARY].astype(bool)


assert answer.token_ids[: len(forced)] == tuple(forced)
matcher.consume_tokens(forced)
masks = []
for token in answer.token_ids[len(forced) :]:
    masks.append(mask_of(matcher))
    assert masks[-1][token]
    matcher.consume_token(token)
assert matcher.is_accepting()

# %% [markdown]
# The picture has a column for each token of the answer; the forced ones are orange. Its height says how many of the
# 49,152 tokens might have come there, on a logarithmic scale. Inside a string, nearly all may: a quote ends the string.
# Between two properties only one token may come, and in a number it is a digit or the comma.

# %%
texts = [session.decode([token]) for token in answer.token_ids]
counts = [None] * len(forced) + [int(mask.sum()) for mask in masks]
pictures.allowed_chart(list(zip(texts, counts, strict=True)))

# %% [markdown]
# And these are whole masks: a dot for each token of the vocabulary, 256 in a row, dark where it is allowed.

# %%
after = {}
for ending in ('"name": "', '"born": 1', "keeper"):
    place = next(at for at in range(len(texts)) if "".join(texts[:at]).endswith(ending))
    after[f"after …{ending}"] = masks[place - len(forced)]
pictures.masks(after)

# %% [markdown]
# ## In the engine
#
# A mask needs the newest token, so it cannot be made ahead. An actor of its own makes it in a worker thread, between
# the tick that gave the token and the next one (`Advance` and `Advanced` in the table of tutorial 08). Free requests
# wait for it for a twentieth of a tick at most, and then go on without those whose masks are late. A small program
# copies the bits to the device, and the step that was compiled anyway applies them. So nothing is compiled for a new
# form, and constrained and free requests share a batch. The number below counts the forced tokens: three in each of the
# five answers of this schema.

# %%
compiled = session.stats.compilations
together = await session.generate([QUESTION] * 4, json_schema=Person, max_tokens=60, temperature=0)
assert [each.token_ids for each in together] == [answer.token_ids] * 4
assert session.stats.compilations == compiled
session.stats.scheduler.forced_tokens

# %% [markdown]
# Draws keep their seeds too. Twenty draws among three words show what the model finds likely:

# %%
draws = await session.generate(
    "Water boils at 100 degrees. That is a fact of", n=20, seed=1, choice=[" physics", " chemistry", " biology"]
)
Counter(draw.parsed for draw in draws)

# %% [markdown]
# ## What can go wrong
#
# An output that `max_tokens` cuts is no JSON. It has no `parsed`, and says why:

# %%
cut = await session.generate(QUESTION, json_schema=Person, max_tokens=8, temperature=0)
print(cut.parsed, "because", cut.unparsed)

# %% [markdown]
# A form that contradicts itself, or that llguidance does not enforce as a whole, is refused at the call. And where
# other parameters leave nothing of what the form allows, that request fails alone:

# %%
for wrong in (
    {"json_schema": {"type": "string", "minLength": 5, "maxLength": 3}},
    {"json_schema": {"type": "integer", "not": {"const": 7}}},
    {"regex": "(?=a)b"},
    {"regex": "[0-9]+", "bad_words": list("0123456789")},
):
    try:
        await session.generate("A number: ", max_tokens=5, **wrong)
    except rekindle.RekindleError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")

await session.close()

# %% [markdown]
# ## Tools
#
# A **tool** is a function that the model may call. A model that knows tools writes a call as text, in a form that it
# was trained on; Rekindle reads it from there. The chat template of SmolLM2 has no place for tools, so Rekindle would
# describe them in the system message. To see a form in full, we open the model with another template instead, in the
# form that Qwen's models have.

# %%
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is written as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
session = await rekindle.open(MODEL, chat_template=TEMPLATE, **SETTINGS)


def weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: its name, in English.
    """
    return {"Oslo": "It snows in Oslo, at -3 degrees.", "Paris": "It rains in Paris, at 9 degrees."}[city]


# %% [markdown]
# Nobody has told the model what the weather is. So it talks about something else:

# %%
messages = [{"role": "user", "content": "What is the weather in Oslo and in Paris?"}]
print(await session.generate(messages, max_tokens=60, temperature=0))

# %% [markdown]
# A Python function is enough for a tool: its schema comes from the annotations and the docstring.
# `tool_choice="required"` makes calls the only form that the answer may have, by a mask again. The question is about
# two cities, and so there are two calls:

# %%
answer = await session.generate(messages, tools=[weather], tool_choice="required", max_tokens=80, temperature=0)
answer

# %%
for call in answer.tool_calls:
    print(call.name, call.arguments)

# %%
assert [(call.name, call.arguments) for call in answer.tool_calls] == [
    ("weather", {"city": "Oslo"}),
    ("weather", {"city": "Paris"}),
]

# %% [markdown]
# `answer.message` goes back into the conversation, and each result follows it as a message of the role `tool`. Then the
# model answers with what it was told.

# %%
messages.append(answer.message)
messages += [{"role": "tool", "content": weather(**call.arguments)} for call in answer.tool_calls]
report = await session.generate(messages, max_tokens=40, temperature=0)
print(report)

# %%
assert "-3 degrees" in report.text
assert "9 degrees" in report.text

# %% [markdown]
# `session.run_tools(messages, tools)` does all of that: it asks the model, calls what the model wants called, and asks
# again until there is an answer. It needs a model that was trained on tools, and so knows when to call and when to stop
# calling. SmolLM2 was not, and so we required the calls here, and asked for the answer without tools.
#
# ## Chats
#
# A chat (tutorial 01) may have tools too: `session.chat(tools=[weather])`. Each turn goes on with the very tokens of
# the turns before, so that all of them but the last page are found in the prefix cache:

# %%
chat = session.chat(system="You answer in one short sentence.", max_tokens=40, temperature=0)
for text in ("What is the capital of Norway?", "And of Sweden?", "And of Finland?"):
    turn = await chat.say(text)
    print(f"{turn.cached_tokens:4} of {turn.usage.prompt_tokens:4} tokens cached: {turn.content!r}")

# %% [markdown]
# `chat.fork()` is a second conversation that begins the same, `chat.undo()` takes a turn back, and `chat.edit(place,
# text)` changes what was said in a place and drops what followed.

# %%
other = chat.fork()
other.undo()
print(len(chat.messages), "messages, and", len(other.messages), "in the other")
await session.close()

# %%
assert turn.cached_tokens > 0
assert len(other.messages) == len(chat.messages) - 2

# %% [markdown]
# Next: [12_judging_texts](12_judging_texts.ipynb) shows what else comes of the same programs: embeddings, likelihoods
# and ranks.
