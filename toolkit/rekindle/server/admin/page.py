"""The page of a server for browsers: its address and models, a box to chat, and the dashboard.

It loads nothing from elsewhere, and its headers forbid any other script.
"""

from base64 import b64encode
from hashlib import sha256
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --line: rgba(128,128,128,0.35); --inset: rgba(128,128,128,0.1); }
* { box-sizing: border-box; }
html { background: Canvas; color: CanvasText; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 62em; margin: 1.2em auto; padding: 0 1em; }
h1 { font-size: 1.2em; margin: 0 0 0.5em; }
h1::before, h2::before { content: ""; display: inline-block; width: 0.55em; height: 0.55em; margin-right: 0.5em;
  border-radius: 50%; background: rgb(232,89,12); }
h2 { font-size: 1em; margin: 0 0 0.4em; }
section { margin: 0 0 0.8em; padding: 0.6em 0.9em; border: 1px solid var(--line); border-radius: 8px; }
section:empty, [hidden] { display: none !important; }
.pale { font-size: 0.9em; opacity: 0.8; }
a { color: inherit; }
code { padding: 0.1em 0.3em; border-radius: 3px; background: var(--inset); overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: 0.5em; align-items: flex-end; }
label { display: flex; flex-direction: column; min-width: 0; }
input, button, select, textarea { font: inherit; padding: 0.35em 0.6em; border: 1px solid var(--line);
  border-radius: 6px; max-width: 100%; }
textarea { resize: vertical; width: 100%; }
.wide { flex: 1 1 14em; }
#talk { max-height: 24em; overflow-y: auto; overflow-wrap: anywhere; }
#talk > div { margin: 0.5em 0; }
#talk .plain { white-space: pre-wrap; }
#talk .user { padding: 0.4em 0.7em; border-radius: 6px; background: var(--inset); }
#boards > * { margin-bottom: 0.8em; }
"""

SCRIPT: Final = """
const at = id => document.getElementById(id)
const [key, models, talk, words, send, stop, note] = ["key", "models", "talk", "words", "send", "stop", "note"].map(at)
const headers = () => key.value ? {authorization: `Bearer ${key.value}`} : {}
const messages = []
let answering = null, timer, longest = 0, trimmed = false

at("address").textContent = new URL("v1", location.href).href
key.value = sessionStorage.getItem("key") ?? ""
at("access").onsubmit = event => { event.preventDefault(); sessionStorage.setItem("key", key.value); show() }

function ask(wanted) {
  at("access").hidden = !wanted
  at("chat").hidden = wanted
  note.textContent = wanted && key.value ? "The server does not accept this key." : ""
}

async function list() {
  if (models.options.length) return
  const reply = await fetch("v1/models", {headers: headers()})
  if (!reply.ok) return
  for (const {id} of (await reply.json()).data) models.add(new Option(id, id))
}

async function show() {
  clearTimeout(timer)
  let wait = 1000
  try {
    const reply = await fetch("dashboard", {headers: headers()})
    if (reply.status === 401) return ask(true)
    if (!reply.ok) throw new Error(`status ${reply.status}`)
    at("boards").innerHTML = await reply.text()
    ask(false)
    await list()
  } catch (error) {
    note.textContent = `The server does not answer (${error.message}); the figures below are the last ones.`
    wait = 5000
  }
  if (!document.hidden) timer = setTimeout(show, wait)
}

function line(role, text) {
  const line = document.createElement("div")
  line.className = `${role} plain`
  line.textContent = text
  talk.append(line)
  talk.scrollTop = talk.scrollHeight
  return line
}

function drawing(line) {
  // Draws the newest text, one request at a time; texts that are no longer the newest are left out.
  let wanted = "", busy = null
  async function draw() {
    for (let drawn = ""; drawn !== wanted; await new Promise(done => setTimeout(done, 150))) {
      drawn = wanted
      const reply = await fetch("dashboard/answer", {method: "POST", headers: headers(), body: drawn}).catch(() => null)
      if (!reply?.ok) {
        line.textContent = drawn
        line.className = "assistant plain"
        continue
      }
      const html = await reply.text()
      const unfolded = [...line.querySelectorAll("details")].map(each => each.open)
      line.innerHTML = html
      line.className = "assistant"
      line.querySelectorAll("details").forEach((each, place) => { each.open = unfolded[place] ?? false })
      talk.scrollTop = talk.scrollHeight
    }
    busy = null
  }
  return text => {
    wanted = text
    if (line.classList.contains("plain")) {
      line.textContent = text
      line.className = "assistant plain"
    }
    busy ??= draw()
    return busy
  }
}

async function* objects(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  for (let rest = "";;) {
    const {value, done} = await reader.read()
    if (done) return
    const lines = (rest + value).split("\\n")
    rest = lines.pop()
    for (const line of lines) yield JSON.parse(line)
  }
}

function ended({done_reason, prompt_eval_count, eval_count}) {
  // The prompt of a whole conversation is longer each time: a shorter one is without its oldest turns.
  if (prompt_eval_count < longest && !trimmed) {
    trimmed = true
    line("pale", "The conversation has filled the context: its oldest turns are no longer sent to the model.")
  }
  longest = Math.max(longest, prompt_eval_count)
  if (done_reason === "length") line("pale", `The answer was cut after ${eval_count} tokens. Ask for more to go on.`)
}

async function answer(text) {
  messages.push({role: "user", content: text})
  line("user", text)
  const shown = line("assistant pale", "waiting"), draw = drawing(shown)
  let content = "", end = null
  answering = new AbortController()
  stop.disabled = !(send.disabled = true)
  try {
    // Of the server's chats, this one lets the oldest turns go when the context is full.
    const reply = await fetch("api/chat", {
      method: "POST",
      headers: {...headers(), "content-type": "application/json"},
      body: JSON.stringify({model: models.value, messages}),
      signal: answering.signal,
    })
    if (!reply.ok) throw new Error((await reply.json()).error)
    for await (const part of objects(reply.body)) {
      if (part.error) throw new Error(part.error)
      content += part.message.content
      if (part.done) end = part
      if (!content) continue
      draw(content)
      talk.scrollTop = talk.scrollHeight
    }
    if (!content) shown.textContent = "(an empty answer)"
    if (end) ended(end)
  } catch (error) {
    if (!content) shown.remove()
    if (error.name !== "AbortError") line("assistant pale", error.message)
  }
  // A turn without an answer is taken back, so that the next one may be tried.
  if (content) messages.push({role: "assistant", content})
  else messages.pop()
  stop.disabled = !(send.disabled = false)
  words.focus()
}

at("chat-form").onsubmit = event => {
  event.preventDefault()
  const text = words.value.trim()
  if (!text || send.disabled) return
  words.value = ""
  answer(text)
}
words.onkeydown = event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
  event.preventDefault()
  at("chat-form").requestSubmit()
}
stop.onclick = () => answering?.abort()
at("new").onclick = () => {
  answering?.abort()
  messages.length = longest = 0
  trimmed = false
  talk.replaceChildren()
  words.focus()
}
document.onvisibilitychange = () => { if (!document.hidden) show() }
show()
"""
"""It asks for the figures once a second while the page is visible, and first for a key if the server wants one."""

PAGE: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rekindle</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Ccircle \
cx='4' cy='4' r='3.5' fill='%23e8590c'/%3E%3C/svg%3E">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Rekindle</h1>
<p>Base URL for clients of OpenAI's API: <code id="address">/v1</code>
<span class="pale">· all paths: <a href="openapi.json">openapi.json</a> · <a href="metrics">metrics</a> ·
<a href="health">health</a></span></p>
<form id="access" hidden><label>API key <input id="key" type="password" autocomplete="off" required></label>
<button>Open</button></form>
<p id="note" role="status"></p>
<section id="chat" hidden>
<h2>Chat</h2>
<div id="talk" role="log" aria-label="Conversation" tabindex="0"></div>
<form id="chat-form">
<label><span class="pale">Model</span> <select id="models"></select></label>
<label class="wide"><span class="pale">Message</span> <textarea id="words" rows="1"></textarea></label>
<button id="send">Send</button>
<button id="stop" type="button" disabled>Stop</button>
<button id="new" type="button">New chat</button>
</form>
</section>
<div id="boards"></div>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""
"""The page. It has no data of the server, so it needs no key."""

HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'sha256-{b64encode(sha256(SCRIPT.encode()).digest()).decode()}'; "
        "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The headers of the page: of scripts, only its own runs, and it speaks to this server alone."""
