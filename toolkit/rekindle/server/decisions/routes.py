"""Endpoints for decisions: the probabilities of the answers to typed questions about a state."""

from starlette.types import ASGIApp

from rekindle.results.scores.decision import Decisions
from rekindle.server.common.events import Head
from rekindle.server.decisions.answer import decision_object, systemone_object
from rekindle.server.decisions.body import DecisionRequest, read_decision, read_systemone
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply


async def answer_questions(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/systemone: the answers to named questions, in the form of TypeSafe, vLLM and Ollama."""
    request = await exchange.read(read_systemone, exchange.limits.prompts)
    head = Head.new("decision", exchange.model.name)
    return reply(systemone_object(head, await _decide(exchange, request), request))


async def create_decision(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/decisions: the answers to a list of questions, in the form of OpenAI."""
    request = await exchange.read(read_decision, exchange.limits.prompts)
    head = Head.new("decision", exchange.model.name)
    return reply(decision_object(head, await _decide(exchange, request), request))


async def _decide(exchange: Exchange, request: DecisionRequest) -> Decisions:
    async def work() -> Decisions:
        decisions: Decisions = await exchange.model.session.decide(
            request.state, request.questions, adapter=exchange.model.adapter, progress=False, **request.options
        )
        return decisions

    return await exchange.run(work)
