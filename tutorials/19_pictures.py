# %% [markdown]
# # 19 · Pictures
#
# Some models read pictures. A **vision tower** turns each picture into a few vectors, and these take the place of
# tokens in the prompt. Here, you draw pictures, ask about them, find them in the prefix cache, see where the model
# looks, and send one to a server. It builds on [01](01_first_words.ipynb).
#
# The model is as tiny as a model can be: a SmolVLM with 288,000 weights, which knows three shapes, four colours and
# nothing else. It is in the folder `shapes` beside this notebook, with the script that trained it. The calls are the
# same for a published model, such as `rekindle.open("HuggingFaceTB/SmolVLM2-256M-Video-Instruct")`. Images need the
# extra `vision` (`pip install '.[vision,server]'` in Rekindle's folder), and the last part needs `openai`.

# %%
import base64
import io
import math

import numpy as np
import openai
import pictures  # of these tutorials, beside this notebook
from shapes import scenes  # beside this notebook too, with the model

import rekindle

session = await rekindle.open(
    scenes.MODEL,
    page_size=16,
    num_pages=257,
    max_context=256,
    max_running=16,
    max_prefill_tokens=256,
    prefill_buckets=[256],
    decode_buckets=[16],
    restore="off",  # nothing is found that an earlier run has computed
    progress=False,
)

# %% [markdown]
# ## Ask about a picture
#
# The pictures have 4 x 4 cells, with a shape in up to three of them:

# %%
picture = scenes.draw(
    scenes.Shape("red", "circle", row=0, column=0),
    scenes.Shape("blue", "square", row=2, column=3),
    scenes.Shape("green", "triangle", row=3, column=1),
)
picture

# %% [markdown]
# `images=` takes them beside the text. Here is an image of PIL, but an array of `uint8`, a path, the bytes of a file
# and a `data:` URL are the same to the model:

# %%
question = [{"role": "user", "content": "What colour is the square?"}]
answer = await session.generate(question, images=[picture], temperature=0)
answer

# %%
as_array = await session.generate(question, images=[np.asarray(picture)], temperature=0)
assert answer.text == as_array.text == " blue"

# %% [markdown]
# What does the model get? Sixteen tokens stand for the picture, one for each square of 24 x 24 pixels, which is a cell.
# In the text, they are all `<image>`. The tower's vectors come in their place.

# %%
print(session.decode(answer.prompt_token_ids).replace("<image>" * 16, "<image> x 16"))
answer.usage

# %% [markdown]
# ## Is it right?
#
# It is easy to know, because we draw the pictures. The model was trained on 144,000 others, drawn by chance in the same
# way; of these hundred, some with a single shape may have been among them. All questions go in one call, with a list of
# images for each of them.

# %%
chance = np.random.default_rng(2026)
asked, images, expected = [], [], []
for _ in range(100):
    shapes = scenes.shapes_by_chance(chance)
    drawn = scenes.draw(*shapes)
    for text, right in scenes.questions(shapes):
        asked.append([{"role": "user", "content": text}])
        images.append([drawn])
        expected.append(right)
answers = await session.generate(asked, images=images, temperature=0, max_tokens=8, progress=False)

kinds = [each[0]["content"].split()[0] for each in asked]
right = np.array([each.text.strip() == wanted for each, wanted in zip(answers, expected, strict=True)])
rows = []
for start in ("How", "What", "Where"):
    chosen = right[[kind == start for kind in kinds]]
    rows.append((f"{start} ...?", len(chosen), f"{chosen.mean():.0%}"))
assert right.mean() > 0.9
pictures.table(rows, head=("question", "asked", "right"))

# %% [markdown]
# Each picture came with several questions, but the tower ran once for each: the vectors stay on the device, and
# prompts that begin with the same picture share its pages of the prefix cache.

# %%
counts = session.stats.scheduler
print(f"{counts.pictures} images in prompts, {counts.embedded_pictures} runs of the tower")
assert counts.embedded_pictures == 101

# %% [markdown]
# ## The picture decides
#
# The same question and the same seed, and only the square has another colour. The last row has no picture at all: then
# the model can only guess.

# %%
COLOURS = list(scenes.COLOURS)
options = {"max_tokens": 1, "temperature": 1.0, "seed": 7, "logprobs": 20}
seen = {"no picture": await session.generate(question, **options)}
for colour in COLOURS:
    drawn = scenes.draw(scenes.Shape("red", "circle", 0, 0), scenes.Shape(colour, "square", 2, 3))
    seen[f"{colour} square"] = await session.generate(question, images=[drawn], **options)


def shares(answer):
    """Return the probability of each colour as the first token of an answer."""
    found = {each.text.strip(): math.exp(each.logprob) for each in answer.logprobs[0].top}
    return [f"{found.get(colour, 0):.0%}" for colour in COLOURS]


rows = [(name, *shares(each), each.text.strip()) for name, each in reversed(seen.items())]
assert all(seen[f"{colour} square"].text.strip() == colour for colour in COLOURS)
pictures.table(rows, head=("picture", *COLOURS, "drawn with seed 7"))

# %% [markdown]
# ## Talk about it
#
# A chat keeps the picture for its later turns. It is not computed again: the second question finds the pages of the
# first one in the prefix cache, with the picture in them.

# %%
chat = session.chat(temperature=0, max_tokens=8)
first = await chat.say("How many shapes?", images=[picture])
second = await chat.say("Where is the triangle?")
for turn in (first, second):
    print(f"{turn.usage.prompt_tokens} tokens of the prompt, {turn.cached_tokens} of them cached")
chat

# %%
assert (first.text, second.text) == (" three", " bottom left")
assert second.cached_tokens == 32
assert session.stats.scheduler.embedded_pictures == 105  # this one was the first of all

# %% [markdown]
# What of another picture, if only one pixel differs? The key of a page has a digest of the pixels, so it is another
# page, though the tokens are equal. Nobody gets an answer about somebody else's picture.

# %%
other = picture.copy()
other.putpixel((95, 0), (254, 255, 255))
same, changed = [
    await session.generate(chat.messages[:1], temperature=0),
    await session.generate([{"role": "user", "content": "How many shapes?"}], images=[other], temperature=0),
]
assert same.prompt_token_ids == changed.prompt_token_ids
print(f"{same.cached_tokens} cached tokens of the same picture, {changed.cached_tokens} of the other")

# %% [markdown]
# ## Where does it look?
#
# The last token of a prompt gets what it needs by attention. The model has three layers with four heads each. Does one
# of them look at the shape in question? Measure it: for 24 new pictures, take the part of each head's attention that
# falls on the cell of that shape. If attention were the same for all tokens, a cell would get 3 %.

# %%
HEADS = [(layer, head) for layer in range(3) for head in range(4)]


async def attention_to_the_shape(question):
    """Return the mean attention of each head of the last token to the cell of the shape in question."""
    chance, sums = np.random.default_rng(7), np.zeros(len(HEADS))
    for _ in range(24):
        shapes = scenes.shapes_by_chance(chance)
        asked = [{"role": "user", "content": question.format(shapes[0].kind)}]
        look = await session.look(asked, images=[scenes.draw(*shapes)], layers=0, heads=HEADS)
        for place, head in enumerate(HEADS):
            (cells,) = look.over_images(token=-1, head=head).maps[0]  # one image, one map of (4, 4) cells
            sums[place] += cells[shapes[0].row, shapes[0].column]
    return sums / 24


where = await attention_to_the_shape("Where is the {}?")
colour = await attention_to_the_shape("What colour is the {}?")
rows = []
for name, means in (("Where ...?", where), ("What colour ...?", colour)):
    rows += [(name, layer, *[f"{part:.0%}" for part in means.reshape(3, 4)[layer]]) for layer in range(3)]
pictures.table(rows, head=("question", "layer", *[f"head {head}" for head in range(4)]))

# %% [markdown]
# Asked *where*, one head of the last layer puts nearly all of its attention on the shape. Asked for a *colour*, no head
# does: in the tower, the squares of a picture exchange what they know before the decoder sees them, so the colour may
# come from any of them. Attention shows where a model reads, and not always what.
#
# The map of that head lies over the picture, once for each shape:

# %%
BEST = HEADS[where.argmax()]
assert where.max() > 0.9 > 0.5 > colour.max()
print(f"head {BEST[1]} of layer {BEST[0]}")
looks = {}
for kind in ("circle", "square", "triangle"):
    asked = [{"role": "user", "content": f"Where is the {kind}?"}]
    looks[kind] = await session.look(asked, images=[picture], layers=0, heads=[BEST])
looks["circle"].over_images(token=-1, head=BEST)

# %%
looks["square"].over_images(token=-1, head=BEST)

# %%
cells = {kind: look.over_images(token=-1, head=BEST).maps[0][0] for kind, look in looks.items()}
found = {kind: divmod(int(each.argmax()), 4) for kind, each in cells.items()}
assert found == {"circle": (0, 0), "square": (2, 3), "triangle": (3, 1)}
found

# %% [markdown]
# These are the rows and columns of the shapes, found by the attention of one token.
#
# ## Ask a server
#
# `session.serve` answers clients of OpenAI, Anthropic and Ollama ([13](13_the_server.ipynb)). In OpenAI's API, a
# picture is a part of a message, as a `data:` URL. An address of the web is refused: the server fetches nothing.

# %%
server = await session.serve(port=0)
client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
file = io.BytesIO()
picture.save(file, "PNG")
url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
reply = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "Where is the circle?"},
            ],
        }
    ],
    temperature=0,
)
print(f"{reply.choices[0].message.content!r}, {reply.usage.prompt_tokens_details.cached_tokens} cached tokens")

# %%
assert reply.choices[0].message.content.strip() == "top left"
assert reply.usage.prompt_tokens_details.cached_tokens >= 16

# %% [markdown]
# The file is another one, but its pixels are those of the picture above, and so the cache knows it.

# %%
await session.close()

# %% [markdown]
# ## Try it
#
# - Draw two circles. What does the model say of their colour, and where does it look? It was never trained on this.
# - Move a shape over the border of two cells, by its `shift`. Which answers suffer first?
# - Open a published model, such as SmolVLM2 above, with one of your photographs. It cuts a large one into tiles: see
#   `answer.usage.image_tokens`, and what `{"type": "image", "image": ..., "detail": "low"}` does to it.
