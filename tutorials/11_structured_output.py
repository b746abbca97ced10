# %% [markdown]
# # 11 · Structured output and tools
#
# A program that reads what a model writes wants it in a form: JSON with certain keys, one of a few words, a date. You
# can ask the model for that form, and a small model will often miss it. This notebook holds the model to it instead.
# You see how the vocabulary is masked before each token, and how the same masks make a model call functions. It builds
# on tutorial 02 for tokens and sampling.

# %%
from dataclasses import dataclass

import numpy as np
from IPython.display import HTML

import rekindle
from rekindle.core import markup
from rekindle.views.drawing import Drawing, svg_text

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
# First we only ask for JSON. A model of 135 million parameters writes something that looks like it:

# %%
QUESTION = [
    {
        "role": "user",
        "content": "Anna, born in 1987, is a teacher in Oslo. Who is she? Answer with JSON: name, born, job.",
    }
]
asked = await session.generate(QUESTION, max_tokens=60, temperature=0)
print(asked)

# %% [markdown]
# Now the same question with a **schema**. A dataclass is one, and so are pydantic's models, `TypedDict`s, and JSON
# schemas as dicts. Types need pydantic (`pip install pydantic`); dicts need nothing.


# %%
@dataclass
class Person:
    """A person of whom the question tells."""

    name: str
    born: int
    job: str


answer = await session.generate(QUESTION, json_schema=Person, max_tokens=60, temperature=0)
answer

# %% [markdown]
# `answer.text` is JSON of the schema, and `answer.parsed` is the object that it stands for. The form is right. What
# fills it is the model's own, and a small model may fill in nonsense.

# %%
answer.parsed

# %%
assert isinstance(answer.parsed, Person)
assert answer.finish_reason == "stop"

# %% [markdown]
# Three other keywords say a form. `choice` lists texts, `regex` is a regular expression, and `grammar` is a grammar.

# %%
for form in (
    {"choice": ["physics", "chemistry", "biology"]},
    {"regex": r"(19|20)\d\d-(0[1-9]|1[0-2])"},
    {"grammar": 'start: NUMBER (" + " NUMBER)~2\nNUMBER: /[1-9]/'},
):
    chosen = await session.generate("A word, a month or a sum: ", max_tokens=20, temperature=0, **form)
    print(f"{next(iter(form)):8} {chosen.parsed!r}")

# %% [markdown]
# ## Masks
#
# A form is compiled to something that is asked, after every token: *which tokens may come next?* The answer is a
# **mask** with one bit for each token of the vocabulary. Tokens without a bit get a logit of minus infinity, and then
# the next token is drawn as always. So each output has the form, at any temperature, and no token is drawn twice.
#
# The library [llguidance](https://github.com/guidance-ai/llguidance) compiles the form and follows the tokens. Here we
# do by hand what the engine does for a request, over the tokens of the answer above.

# %%
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.masks import run_steps

VOCABULARY = 49_152
END = session.encode("<|im_end|>")[0]
compiler = Compiler(session._tokenizer(), VOCABULARY, {END})
params = SamplingParams.from_options({"json_schema": Person, "max_tokens": 60})
request = Request(0, answer.prompt_token_ids, params, frozenset({END}), 512)

place = compiler.compile(params.constraint).matcher(request)
allowed = run_steps(place.start())
allowed

# %% [markdown]
# The start of the output is not a question at all: JSON of this schema has to begin with `{"name":`. Such tokens are
# **forced**. The engine does not generate them one by one. It computes them together with the prompt. After them there
# is a mask. We go on with the tokens that the model has chosen, and keep each mask.


# %%
def may(bits):
    """Return which tokens a mask allows, as booleans (vocabulary,)."""
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[:VOCABULARY].astype(bool)


steps = [(token, None) for token in allowed.forced]
for token in answer.token_ids[len(steps) :]:
    steps.append((token, may(allowed.bits)))
    allowed = run_steps(place.take(token, min_forced=VOCABULARY))  # no forced tokens, so each token has a mask

assert tuple(token for token, _ in steps) == answer.token_ids
assert all(mask is None or mask[token] for token, mask in steps)
assert allowed.complete

# %% [markdown]
# The picture has a column for each token of the answer. Its height says how many of the 49,152 tokens might have come
# there, on a logarithmic scale. Inside a string, nearly all may: a quote ends the string. Between two properties only
# one token may come, and in a number it is a digit or the comma.


# %%
def draw_columns():
    """Draw how many tokens were allowed in each place; forced ones are orange."""
    width, bars = 840 / len(steps), []
    for at, (token, mask) in enumerate(steps):
        count = 1 if mask is None else int(mask.sum())
        height, left = 4 + 26 * np.log10(count), 4 + at * width
        colour, why = ("rgb(230,120,0)", "given") if mask is None else ("rgb(70,130,180)", f"{count:,} allowed")
        text = session.decode([token])
        box = f'x="{left:.1f}" y="{130 - height:.1f}" width="{width - 3:.1f}" height="{height:.1f}" fill="{colour}"'
        turned = f'transform="translate({left + width / 2:.1f},140) rotate(50)"'
        title = f"<title>{markup.visible(f'{text}: {why}')}</title>"
        bars.append(f"<g>{title}<rect {box}/><g {turned}>{svg_text(0, 4, text)}</g></g>")
    lines = [
        f"{session.decode([token])!r:12} {'given' if mask is None else f'{mask.sum():,} allowed'}"
        for token, mask in steps
    ]
    return Drawing("how many tokens may come in each place", 210, "".join(bars), "\n".join(lines))


draw_columns()

# %% [markdown]
# And these are whole masks: a dot for each token of the vocabulary, 256 in a row, dark where it is allowed.

# %%
SIDE, ROWS = 256, VOCABULARY // 256


def dots(mask, left):
    """Draw one mask as SVG: each run of allowed tokens is a rectangle."""
    parts = [
        f'<rect x="{left}" y="20" width="{SIDE}" height="{ROWS}" fill="none" stroke="currentColor" stroke-width="0.5"/>'
    ]
    for row, line in enumerate(mask.reshape(ROWS, SIDE)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        for first, last in edges.reshape(-1, 2):
            size = max(last - first, 2)
            parts.append(
                f'<rect x="{left + first}" y="{20 + row}" width="{size}" height="{2 if last - first < 3 else 1}"/>'
            )
    return "".join(parts)


def draw_masks(chosen):
    """Draw the masks of some places side by side."""
    parts, lines = [], []
    for at, place in enumerate(chosen):
        before = session.decode([token for token, _ in steps[:place]])
        mask = steps[place][1]
        parts += [dots(mask, at * 290 + 4), svg_text(at * 290 + 4, 12, f"after …{before[-20:]}")]
        lines.append(f"after {before!r}: {mask.sum():,} of {VOCABULARY:,} tokens may come")
    return Drawing("three masks", 20 + ROWS + 8, "".join(parts), "\n".join(lines))


def place_after(text):
    """Return the place of the token that comes after a text of the answer."""
    return next(at for at in range(len(steps)) if session.decode(answer.token_ids[:at]).endswith(text))


draw_masks([place_after('"name": "'), place_after('"born": 1'), len(steps) - 1])

# %% [markdown]
# ## In the engine
#
# A mask needs the newest token, so it cannot be made ahead. An actor of its own makes it in a worker thread, between
# the tick that gave the token and the next one (`Advance` and `Advanced` in the table of tutorial 08). Free requests
# wait for it for a twentieth of a tick at most, and then go on without those whose masks are late. A small program
# copies the bits to the device, and the step that was compiled anyway applies them. So nothing is compiled for a new
# form, and constrained and free requests share a batch.

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
counts = {word: sum(draw.parsed == word for draw in draws) for word in sorted({draw.parsed for draw in draws})}
HTML(markup.table(((word, str(count)) for word, count in counts.items()), head=("word", "of 20 draws")))

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
# was trained on; Rekindle reads it from there. The chat template of SmolLM2 has no place for tools. So we open it with
# another template, in the form that Qwen's models have.

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


def weather(city: str, unit: str = "celsius") -> str:
    """Return the weather of a city.

    Args:
        city: its name, in English.
        unit: of the temperature.
    """
    return f"It is sunny in {city}, at 21 degrees {unit}."


# %% [markdown]
# A Python function is enough: its schema comes from the annotations and the docstring. `tool_choice="required"` makes a
# call the only form that the answer may have, by a mask again.

# %%
messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
answer = await session.generate(messages, tools=[weather], tool_choice="required", max_tokens=60, temperature=0)
answer

# %%
(call,) = answer.tool_calls[:1]
call.name, call.arguments

# %%
assert call.name == "weather"
assert call.error is None

# %% [markdown]
# `answer.message` goes back into the conversation, and the result follows it as a message of the role `tool`. Then the
# model answers with what it was told. SmolLM2 was not trained on tools and would call again, so here a form asks for
# one sentence.

# %%
messages += [answer.message, {"role": "tool", "content": weather(**call.arguments)}]
print(await session.generate(messages, regex=r"[A-Z][^<>{}.]{10,80}\.", max_tokens=40, temperature=0))

# %% [markdown]
# `session.run_tools(messages, tools)` does all of that: it asks the model, calls what the model wants called, and asks
# again until there is an answer. It needs a model that was trained on tools, and so knows when to stop calling.
#
# ## Chats
#
# A `Chat` remembers its messages. Each turn goes on with the very tokens of the turns before, so that all of them but
# the last page are found in the prefix cache:

# %%
chat = session.chat(system="You answer in one short sentence.", max_tokens=40, temperature=0)
for text in ("What is the capital of Norway?", "And of Sweden?", "Which of the two is larger?"):
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
