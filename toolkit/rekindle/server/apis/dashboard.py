"""The server's page for browsers: the dashboard of each open model."""

from dataclasses import replace
from time import perf_counter
from typing import Final
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from rekindle.core import markup
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.board_html import board_html
from rekindle.notebook.board.rates import Rates
from rekindle.server.models.served import Models, ServedModel
from rekindle.server.models.session import ServedSession

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


class DashboardRoutes:
    """The endpoints of the page.

    Args:
        models: the models of the server.
    """

    def __init__(self, models: Models):
        self._models = models
        self._rates: WeakKeyDictionary[ServedSession, Rates] = WeakKeyDictionary()

    async def page(self, request: Request) -> Response:
        """Serve GET /: a page with the dashboard for browsers, a line of text for other clients."""
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(PAGE) if wants_page else PlainTextResponse("Rekindle is running")

    async def boards(self, request: Request) -> Response:
        """Serve GET /dashboard: the dashboards of open models, as HTML."""
        models = self._models.open_models()
        names = {model.base for model in models}
        closed = [base for base in self._models.bases if base not in names]
        note = markup.note(f"closed until the next request: {', '.join(closed)}") if closed else ""
        return HTMLResponse("".join(map(self._board, models)) + note)

    def _board(self, model: ServedModel) -> str:
        rates = self._rates.setdefault(model.session, Rates())
        now = perf_counter()
        facts = replace(model.session.view.look(now), name=model.base)  # the session's name may be a path
        return board_html(Board(facts, rates.look(now, facts.stats.scheduler.generated_tokens)))
