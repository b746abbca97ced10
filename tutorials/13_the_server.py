# %% [markdown]
# # 13 · The server
#
# Many programs know how to ask a model by OpenAI's API: editors, agents, evaluations, a colleague's script. A session
# can answer them while your cells use it. Both share its batches, its compiled programs and its prefix cache. This
# notebook starts a server, asks it in the ways that clients do, and watches from the inside what they cause. It builds
# on tutorial 01, and on tutorial 11 for structured output.
#
# The server needs the extra `server` (`pip install '.[server]'` in Rekindle's folder), and the cells below need
# `openai` too.

# %%
import asyncio
import http.client
import json
import time
import urllib.request

import openai
import pydantic

import rekindle

session = await rekindle.open(
    "smollm2-135m-instruct",
    page_size=16,
    num_pages=257,
    max_context=1024,
    max_running=8,
    max_waiting=8,
    max_prefill_tokens=128,
    prefill_buckets=[128],
    decode_buckets=[8],
    precompile="lazy",
    restore="off",  # nothing is found that an earlier run has computed
    progress=False,
)

# %% [markdown]
# ## Serve and ask
#
# `session.serve` returns once clients can connect. `port=0` takes a port that is free; the default is 8000. The server
# listens to this machine alone.

# %%
server = await session.serve(port=0)
server

# %% [markdown]
# OpenAI's own client needs to know that address, and a key. The server asks for none, so any text will do. The call
# below blocks its cell, and the server in the same kernel answers it all the same: it has a thread and an event loop of
# its own.

# %%
client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
reply = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=30, temperature=0)
print(MODEL, "says:", reply.choices[0].message.content)

# %% [markdown]
# The session gives the same tokens for the same question, and for the same `seed` if tokens are drawn:

# %%
mine = await session.generate(QUESTION, max_tokens=30, temperature=0)
drawn = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=30, temperature=0.8, seed=5)
mine_drawn = await session.generate(QUESTION, max_tokens=30, temperature=0.8, seed=5)
print(mine.content)
print(mine_drawn.content)

# %%
assert mine.content == reply.choices[0].message.content
assert mine_drawn.content == drawn.choices[0].message.content

# %% [markdown]
# ## What goes over the wire
#
# Underneath, a question is a POST of JSON, and so is the answer. Any language can do this, and `curl` can:


# %%
def post(path, body):
    """Send JSON to the server, and return the open answer."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


answer = post("/v1/completions", {"prompt": "The sea", "max_tokens": 8, "temperature": 0})
print(answer.status)
print(json.dumps(json.loads(answer.read()), indent=2))

# %% [markdown]
# Nothing that you write is passed over in silence. A field that the server does not know might change the answer, so
# the request is refused, and the error has the field's name:

# %%
answer = post("/v1/completions", {"prompt": "The sea", "max_tokens": 8, "temprature": 0})
refused = json.loads(answer.read())["error"]
print(answer.status, refused["message"])

# %%
assert answer.status == 400
assert refused["param"] == "temprature"

# %% [markdown]
# ## Streams
#
# With `stream`, the answer comes as *server-sent events*: lines that begin with `data: `, one for each piece of text.
# The last one says `[DONE]`.

# %%
answer = post(
    "/v1/completions", {"prompt": "One, two, three, four,", "max_tokens": 6, "temperature": 0, "stream": True}
)
events = [line.decode().strip() for line in answer if line.strip()]
for event in events:
    if event == "data: [DONE]":
        print(event)
    else:
        choice = json.loads(event.removeprefix("data: "))["choices"][0]
        print(f"data: ... {choice['text']!r}, finish_reason {choice['finish_reason']}")

# %% [markdown]
# A client reads these for you:

# %%
chunks = client.chat.completions.create(
    model=MODEL,
    messages=[{"role": "user", "content": "What is a prime number? Answer in one sentence."}],
    max_tokens=40,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="")
print(f"\n({chunk.usage.completion_tokens} tokens)")

# %%
assert events[-1] == "data: [DONE]"
assert chunk.usage.completion_tokens > 10

# %% [markdown]
# ## One cache, one batch
#
# Here a cell asks about a document, and then a client asks something else about the same one. The client's prompt
# begins like the cell's, so most of its tokens are found in the prefix cache (tutorial 04). The answer says how many.

# %%
document = "The lighthouse keeper wrote in a blue book each evening. " * 20
first = await session.generate(document + "What did he write in?", max_tokens=8)
theirs = client.completions.create(model=MODEL, prompt=document + "When did he write?", max_tokens=8)
usage = theirs.usage
print(f"the cell's prompt had {first.usage.prompt_tokens} tokens, {first.cached_tokens} of them cached")
print(f"the client's had {usage.prompt_tokens}, {usage.prompt_tokens_details.cached_tokens} of them cached")

# %% [markdown]
# Whoever asks you to keep their prompts apart from those of others can give each of them a `cache_salt`. Requests with
# different salts share nothing:

# %%
apart = client.completions.create(
    model=MODEL, prompt=document + "When did he write?", max_tokens=8, extra_body={"cache_salt": "somebody else"}
)
print(f"{apart.usage.prompt_tokens_details.cached_tokens} tokens cached")

# %%
assert usage.prompt_tokens_details.cached_tokens >= 200
assert apart.usage.prompt_tokens_details.cached_tokens == 0

# %% [markdown]
# Eight requests at once are one batch for the engine, four from clients and four from the cell. Each tick makes a token
# for all of them, so they take far fewer ticks than tokens.

# %%
prompts = ["The opposite of hot is", "One, two, three,", "The harbour was", "import numpy"]
ticks = session.stats.scheduler.ticks
async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as several:
    clients = [several.completions.create(model=MODEL, prompt=each, max_tokens=24) for each in prompts]
    cells = session.generate([f"{each} " for each in prompts], max_tokens=24)
    theirs, ours = await asyncio.gather(asyncio.gather(*clients), cells)
ticks = session.stats.scheduler.ticks - ticks
tokens = sum(each.usage.completion_tokens for each in [*theirs, *ours])
print(f"{tokens} tokens in {ticks} ticks")

# %%
assert ticks < tokens / 2

# %% [markdown]
# ## Forms
#
# All that holds an output to a form works here too. OpenAI's clients send a pydantic model as a JSON schema, and parse
# what comes back. The names of vLLM for the other constraints, such as `guided_regex`, go into `extra_body`.


# %%
class Person(pydantic.BaseModel):
    """A person whom a text mentions."""

    name: str
    born: int
    job: str


TEXT = """Extract the name, the year of birth and the job as JSON.
Text: Ada Holm, born in 1841, was the lighthouse keeper of Lindvik."""
MOON = [{"role": "user", "content": "In which year did the first human walk on the moon?"}]
parsed = client.chat.completions.parse(
    model=MODEL,
    messages=[{"role": "user", "content": TEXT}],
    response_format=Person,
    max_tokens=60,
    temperature=0,
)
year = client.chat.completions.create(
    model=MODEL, messages=MOON, temperature=0, extra_body={"guided_regex": r"(19|20)\d\d"}
)
print(repr(parsed.choices[0].message.parsed))
print(year.choices[0].message.content)

# %%
assert isinstance(parsed.choices[0].message.parsed, Person)
assert year.choices[0].message.content == "1969"

# %% [markdown]
# ## Clients that go away, and clients that are too many
#
# A request of a client is a request like yours: `session.requests` lists it, the dashboard shows it, and you can cancel
# it. When its client closes the connection, it is cancelled too. Its slot and its pages are free a tick later.

# %%
stream = client.completions.create(
    model=MODEL, prompt="A very long story:", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
)
for _ in zip(range(5), stream, strict=False):
    pass
(request,) = session.requests.values()
print(repr(request))

# %%
stream.close()
try:
    await request
except rekindle.RequestCancelled as error:
    print(error)
while session.stats.scheduler.running:
    time.sleep(0.01)
counts = session.stats.scheduler
print(f"{counts.running} running, {counts.free_pages} of {counts.pages} pages free")

# %%
assert counts.running == 0
assert counts.free_pages == counts.pages

# %% [markdown]
# The waiting queue is bounded (`max_waiting`, here 8). To see it full, we pause the engine and submit eight requests
# ourselves. A ninth is refused with status 429, and with the seconds after which to come again.

# %%
await session.pause()
waiting = [session.submit("One, two,", max_tokens=2) for _ in range(8)]
try:
    client.with_options(max_retries=0).completions.create(model=MODEL, prompt="Three,", max_tokens=2)
except openai.RateLimitError as error:
    full = error
print(full.status_code, full.body["message"], "Retry-After:", full.response.headers["Retry-After"])

# %% [markdown]
# Most clients wait that long and try again by themselves; `max_retries=0` has this one give up. Once the queue has
# room, the same question is answered.

# %%
session.resume()
later = client.completions.create(model=MODEL, prompt="Three,", max_tokens=2)
print([len((await each).token_ids) for each in waiting], later.usage.completion_tokens)

# %%
assert full.status_code == 429
assert later.usage.completion_tokens == 2

# %% [markdown]
# ## Metrics
#
# `/metrics` is for Prometheus. It has the counts of `session.stats`, whoever has caused them, and the times of all
# requests as histograms.

# %%
with urllib.request.urlopen(f"{server.url}/metrics") as answer:
    text = answer.read().decode()
lines = [line for line in text.splitlines() if not line.startswith("#")]
values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
counts = session.stats.scheduler
for name in ("ended", "ticks", "prompt_tokens", "device_hit_tokens", "generated_tokens"):
    print(f"rekindle_{name}_total {values[f'rekindle_{name}_total']:.0f}, session.stats {getattr(counts, name)}")
first_token = "rekindle_time_to_first_token_seconds"
print(f"{values[f'{first_token}_count']:.0f} requests had a first token")
print(*text.splitlines()[:6], sep="\n")

# %%
for name in ("ended", "ticks", "prompt_tokens", "device_hit_tokens", "generated_tokens"):
    assert values[f"rekindle_{name}_total"] == getattr(counts, name)

# %% [markdown]
# ## Who may ask
#
# Without a key, only this machine is answered. To serve others, give `host="0.0.0.0"`, and keys, one of which each
# client has to send. A session may have several servers; this one asks for a key, and calls the model by another name.

# %%
async with session.serve(port=0, api_keys=["open sesame"], name="small") as guarded:
    for key in ("guess", "open sesame"):
        other = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key)
        try:
            print(key, "→", [each.id for each in other.models.list()])
        except openai.AuthenticationError as error:
            print(key, "→", error.status_code, error.body["message"])

# %% [markdown]
# ## The end
#
# `server.close()` takes no new connections and lets requests under way end. The session goes on. Closing the session
# ends its servers, and so does the end of the kernel.

# %%
await server.close()
try:
    client.with_options(max_retries=0).models.list()
except openai.APIConnectionError as error:
    print(error)
print(await session.generate("The server is closed, and", max_tokens=6))
await session.close()

# %%
assert server.closed.closed

# %% [markdown]
# A notebook is good to look inside. To serve for longer, use a terminal, where the same server runs until Ctrl-C:
#
# ```
# rekindle serve smollm2-135m-instruct --port 8000
# curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "The sea", "max_tokens": 20}'
# ```
#
# `rekindle serve --help` lists its options, and [a guide](guides/serving.md) has all paths and fields.
# `rekindle.server.app(session)` is the same as an ASGI app, for a server of your own.
