"""Texts and numbers in the answers of a server, whole and streamed, by API."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Content = tuple[list[str], list[list[float]]]
"""The texts of the choices, and the log-probabilities of their tokens; or no text, and vectors or scores."""


def content_of(path: str, body: bytes, *, stream: bool) -> Content:
    """Return the content of an answer."""
    if not stream:
        return WHOLE.get(path, _choices)(json.loads(body))
    if path.startswith("/api/"):
        return _lines(path, [json.loads(line) for line in body.splitlines()])
    if path in EVENTS:
        return EVENTS[path]([json.loads(each.partition("data: ")[2]) for each in body.decode().strip().split("\n\n")])
    *events, last = body.decode().removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return _chunks([json.loads(event.removeprefix("data: ")) for event in events])


def _choices(reply: Any) -> Content:
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in reply["choices"]]
    return texts, [_scores(choice) for choice in reply["choices"]]


def _chunks(chunks: Sequence[Any]) -> Content:
    texts: dict[int, str] = {}
    scores: dict[int, list[float]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            place = choice["index"]
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[place] = texts.get(place, "") + text
            scores.setdefault(place, []).extend(_scores(choice))
    return [texts[place] for place in sorted(texts)], [scores[place] for place in sorted(scores)]


def _scores(choice: Mapping[str, Any]) -> list[float]:
    """Return the log-probabilities of the tokens of a choice, or of a chunk of one."""
    found = choice["logprobs"] or {"content": ()}
    return found["token_logprobs"] if "token_logprobs" in found else [each["logprob"] for each in found["content"]]


def _embeddings(reply: Any) -> Content:
    return [], [each["embedding"] for each in reply["data"]]


def _ranking(reply: Any) -> Content:
    ordered = sorted(reply["results"], key=lambda each: each["index"])
    return [], [[each["relevance_score"] for each in ordered]]


def _tokens(reply: Any) -> Content:
    return [], [reply["tokens"]]


def _messages(reply: Any) -> Content:
    return ["".join(block["text"] for block in reply["content"])], [[]]


def _messages_events(events: Sequence[Any]) -> Content:
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    return ["".join(each["delta"].get("text", "") for each in events if each["type"] == "content_block_delta")], [[]]


def _responses(reply: Any) -> Content:
    blocks = [block for item in reply["output"] for block in item["content"]]
    return ["".join(block["text"] for block in blocks)], [[]]


def _responses_events(events: Sequence[Any]) -> Content:
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    text = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    assert [text] == _responses(events[-1]["response"])[0]
    return [text], [[]]


def _lines(path: str, lines: Sequence[Any]) -> Content:
    assert [line["done"] for line in lines] == [*[False] * (len(lines) - 1), True]
    return ["".join(_line_text(line) for line in lines)], [[]]


def _line_text(line: Any) -> str:
    text: str = line["response"] if "response" in line else line["message"]["content"]
    return text


WHOLE: Final[Mapping[str, Callable[[Any], Content]]] = {
    "/v1/embeddings": _embeddings,
    "/v1/rerank": _ranking,
    "/tokenize": _tokens,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
    "/api/chat": lambda reply: ([_line_text(reply)], [[]]),
    "/api/generate": lambda reply: ([_line_text(reply)], [[]]),
}
EVENTS: Final[Mapping[str, Callable[[Sequence[Any]], Content]]] = {
    "/v1/messages": _messages_events,
    "/v1/responses": _responses_events,
}
