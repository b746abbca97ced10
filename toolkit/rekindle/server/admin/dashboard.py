"""The server's page for browsers: the dashboard of each open model, and the answers of its chat."""

from dataclasses import replace
from functools import partial
from time import perf_counter
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from rekindle import markup
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.board_html import board_html
from rekindle.notebook.board.rates import Rates
from rekindle.results.markdown import answer_html
from rekindle.server.admin.page import HEADERS, PAGE
from rekindle.server.http.limits import Limits, on_thread
from rekindle.server.http.reading import read_body
from rekindle.server.models.served import Models, ServedModel
from rekindle.server.models.session import ServedSession


class DashboardRoutes:
    """The endpoints of the page.

    Args:
        models: the models of the server.
        limits: the bounds of the server.
    """

    def __init__(self, models: Models, limits: Limits):
        self._models, self._limits = models, replace(limits, body_bytes=4 * markup.LONGEST_PASSAGE)
        self._rates: WeakKeyDictionary[ServedSession, Rates] = WeakKeyDictionary()

    async def page(self, request: Request) -> Response:
        """Serve GET /: a page with a chat and the dashboard for browsers, a line of text for other clients."""
        wants_page = "text/html" in request.headers.get("accept", "")
        return HTMLResponse(PAGE, headers=HEADERS) if wants_page else PlainTextResponse("Rekindle is running")

    async def boards(self, request: Request) -> Response:
        """Serve GET /dashboard: the dashboards of open models, as HTML."""
        models = self._models.open_models()
        names = {model.base for model in models}
        closed = [base for base in self._models.bases if base not in names]
        note = markup.note(f"closed until the next request: {', '.join(closed)}") if closed else ""
        return HTMLResponse("".join(map(self._board, models)) + note)

    async def answer(self, request: Request) -> Response:
        """Serve POST /dashboard/answer: an answer of a model, rendered as in a notebook's card."""
        text = (await read_body(request, self._limits)).decode(errors="replace")
        return HTMLResponse(await on_thread(partial(answer_html, text)))

    def _board(self, model: ServedModel) -> str:
        rates = self._rates.setdefault(model.session, Rates())
        now = perf_counter()
        facts = replace(model.session.view.look(now), name=model.base)  # the session's name may be a path
        return board_html(Board(facts, rates.look(now, facts.stats.scheduler.generated_tokens)))
