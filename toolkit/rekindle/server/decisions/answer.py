"""Answers of the server with decisions."""

from collections.abc import Sequence
from typing import Any

from rekindle.results.scores.decision import Decision, Decisions
from rekindle.server.common.events import Head
from rekindle.server.decisions.body import DecisionRequest


def systemone_object(head: Head, decisions: Decisions, request: DecisionRequest) -> dict[str, Any]:
    """Return the answer to a System One request, with vLLM's diagnostics."""
    pairs = list(zip(request.names, decisions, strict=True))
    return {
        "id": head.id,
        "object": "structured_decision",
        "created": head.created,
        "model": head.model,
        "answers": {name: _systemone_answer(decision) for name, decision in pairs},
        "usage": {"input_tokens": decisions.prompt_tokens, "output_tokens": len(decisions)},
        "diagnostics": {
            name: {"label_mass": decision.mass, "argmax_is_label": decision.rank == 1} for name, decision in pairs
        },
    }


def decision_object(head: Head, decisions: Decisions, request: DecisionRequest) -> dict[str, Any]:
    """Return the answer to a request of OpenAI's Decisions API."""
    tokens, cached = decisions.prompt_tokens, decisions.cached_tokens
    return {
        "model": head.model,
        "answers": [
            {"name": name, **_openai_answer(decision, values)}
            for name, decision, values in zip(request.names, decisions, request.values, strict=True)
        ],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
    }


def _systemone_answer(decision: Decision) -> dict[str, Any]:
    probabilities = dict(decision.probabilities)
    shares = {"confidence": decision.confidence, "probabilities": probabilities}
    match decision.question.kind:
        case "yes_no":
            return {"type": "noul", "noul": probabilities["yes"], **shares}
        case "choice":
            return {"type": "choice", "choice": decision.best, **shares}
        case "score":
            legend = dict(zip(decision.question.names, decision.question.descriptions, strict=True))
            return {"type": "score", "score": decision.answer, "legend": legend, **shares}


def _openai_answer(decision: Decision, values: Sequence[str | bool]) -> dict[str, Any]:
    shares = list(decision.probabilities.values())
    match decision.question.kind:
        case "yes_no":
            return {"type": "predicate", "probability": decision.probabilities["yes"]}
        case "choice":
            pairs = [{"value": value, "probability": p} for value, p in zip(values, shares, strict=True)]
            best = values[shares.index(max(shares))]
            return {"type": "choice", "choice": best, "confidence": decision.confidence, "probabilities": pairs}
        case "score":
            labels = [str(text) for text in decision.question.descriptions]
            levels = [
                {"value": level, "label": label.partition(": ")[0], "probability": p}
                for level, (label, p) in enumerate(zip(labels, shares, strict=True))
            ]
            score = {"score": decision.answer, "confidence": decision.confidence}
            return {"type": "score", **score, "probabilities": levels}
