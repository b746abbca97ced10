"""The page of a server: its dashboard for browsers."""

from collections.abc import Sequence
from typing import Final

from rekindle.core import markup

PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rekindle</title>
<style>
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; max-width: 62em; margin: 1.5em auto; padding: 0 1em; }
form, #note { margin: 1em 0; }
input, button { font: inherit; padding: 0.3em 0.6em; }
</style>
</head>
<body>
<main>
<h1 style="font-size:1.2em">Rekindle</h1>
<form hidden><label>API key <input type="password" autocomplete="off" required></label> <button>Show</button></form>
<div id="boards"></div>
<p id="note" role="status"></p>
</main>
<script>
const form = document.querySelector("form"), key = form.querySelector("input")
const boards = document.querySelector("#boards"), note = document.querySelector("#note")
key.value = sessionStorage.getItem("key") ?? ""
form.onsubmit = event => { event.preventDefault(); sessionStorage.setItem("key", key.value); show() }
let timer
async function show() {
  clearTimeout(timer)
  let wait = 1000
  try {
    const headers = key.value ? {authorization: `Bearer ${key.value}`} : {}
    const reply = await fetch("dashboard", {headers})
    if (reply.status === 401) {
      form.hidden = false
      note.textContent = key.value ? "The server does not accept this key." : ""
      return
    }
    form.hidden = true
    if (!reply.ok) throw new Error(`status ${reply.status}`)
    boards.innerHTML = await reply.text()
    note.textContent = ""
  } catch (error) {
    note.textContent = `The server does not answer (${error.message}); the figures above are the last ones.`
    wait = 5000
  }
  if (!document.hidden) timer = setTimeout(show, wait)
}
document.onvisibilitychange = () => { if (!document.hidden) show() }
show()
</script>
</body>
</html>
"""
"""A page without data, which asks for the key and then for the boards, once a second while it is visible."""


def boards_html(boards: Sequence[str], closed: Sequence[str]) -> str:
    """Return the boards of open models and the names of closed ones as HTML."""
    names = ", ".join(closed)
    return "".join(boards) + (markup.note(f"closed until the next request: {names}") if closed else "")
