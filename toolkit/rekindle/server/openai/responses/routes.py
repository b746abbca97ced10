"""Endpoints of OpenAI's Responses API."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.server.common.errors import ApiError, api_error_of, invalid_field
from rekindle.server.common.events import Head
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import large_reply, reply
from rekindle.server.http.limits import on_thread
from rekindle.server.http.query import Query, reads
from rekindle.server.openai.responses.answer import response
from rekindle.server.openai.responses.body import INCLUDES, LOGPROBS, ResponseRequest, read_previous, read_response
from rekindle.server.openai.responses.items import item_in_api, references_in
from rekindle.server.openai.responses.kept import KeptResponse, KeptResponses
from rekindle.server.openai.responses.stream import ResponseChunks

ITEMS, MOST_ITEMS = 20, 100
"""The number of input items in a list by default, and at most, as in OpenAI's API."""
INCLUDE = ("include", "include[]")
"""Names of the query for parts on demand: clients write lists in two ways."""
ORDER = Query("order", ("asc", "desc"), "desc")
RENDERED = ("tools", "chat_template_kwargs")
"""Keywords of a call with an effect on the prompt."""


class ResponseRoutes:
    """The endpoints of responses.

    Args:
        responses: the responses for later requests.
    """

    def __init__(self, responses: KeptResponses):
        self._responses = responses

    async def create(self, exchange: Exchange) -> ASGIApp:
        """Serve POST /v1/responses: one answer to a conversation, whole or in events."""
        request = await self._read(exchange)
        head, responses = Head.new("resp", exchange.model.name), self._responses
        keep = partial(_keep, responses, request)
        if request.call.streaming is not None:
            chunks = await exchange.write(partial(ResponseChunks, head, request, keep))
            handles = await exchange.submit(request.call)
            return exchange.stream(handles, request.call, chunks, responses.settle)
        handles = await exchange.submit(request.call)

        def write(generations: Sequence[Any]) -> dict[str, Any]:
            complete = response(head, generations[0], request)
            keep(complete)
            return complete

        answer = await exchange.finish(handles, request.call, write)
        await responses.settle()  # the next request of the client may come to another process
        return answer

    async def count_tokens(self, exchange: Exchange) -> ASGIApp:
        """Serve POST /v1/responses/input_tokens: the number of tokens in a conversation."""
        call = (await self._read(exchange)).call
        options = {name: call.options[name] for name in RENDERED if name in call.options}
        options = dict(exchange.model.without_unread(options, strict=exchange.body.strict))
        try:
            count = await run_sync(lambda: exchange.model.session.count_tokens(call.prompt, **options))
        except RekindleError as error:
            raise api_error_of(error, {"prompt": "input"}) from error
        return reply({"object": "response.input_tokens", "input_tokens": count})

    @reads(Query(INCLUDE[0]))
    async def retrieve(self, request: Request) -> Response:
        """Serve GET /v1/responses/ID: a kept response."""
        for name, value in request.query_params.multi_items():
            if name == "stream" and value.lower() != "false":
                raise invalid_field(name, "stream is not served for a kept response, which is complete: leave it out")
            if name not in ("stream", *INCLUDE):
                raise invalid_field(name, f"{name:.80} is not served for a kept response; there is only include")
        response = (await self._entry(request)).response
        _check_includes(request, response)
        return await on_thread(lambda: large_reply(response))

    async def delete(self, request: Request) -> Response:
        """Serve DELETE /v1/responses/ID: a response is dropped."""
        name = request.path_params["id"]
        if not await self._responses.delete(name):
            raise _missing(name, HTTPStatus.NOT_FOUND, None)
        return reply({"id": name, "object": "response", "deleted": True})

    @reads(Query("after"), Query("limit"), ORDER, Query(INCLUDE[0]))
    async def list_items(self, request: Request) -> Response:
        """Serve GET /v1/responses/ID/input_items: the input of a kept response, latest first."""
        query = request.query_params
        for field in query:
            if field not in ("after", "limit", "order", *INCLUDE):
                raise invalid_field(field, f"{field:.80} is not served; there are after, include, limit and order")
        ORDER.choice(request)
        entry = await self._entry(request)
        return await on_thread(partial(_page, entry, query))

    async def _entry(self, request: Request) -> KeptResponse:
        name = request.path_params["id"]
        entry = await self._responses.get(name)
        if entry is None:
            raise _missing(name, HTTPStatus.NOT_FOUND, None)
        return entry

    async def _read(self, exchange: Exchange) -> ResponseRequest:
        """Read a request with the conversation before it."""
        previous = read_previous(exchange.body)
        earlier = [] if previous is None else await self._responses.conversation(previous)
        if earlier is None:
            raise _missing(previous, HTTPStatus.BAD_REQUEST, "previous_response_id")
        names = await exchange.read(references_in)
        targets = await self._responses.items(names) if names else {}
        if unknown := [name for name in names if name not in targets]:
            raise _missing_item(unknown[0])
        return await exchange.read(read_response, exchange.model.form, earlier, targets)


def _page(entry: KeptResponse, query: Mapping[str, str]) -> Response:
    """Return a page of the input items of a response; raise ApiError for an invalid query."""
    items = [item_in_api(item, name) for item, name in zip(entry.items, entry.input_ids, strict=True)]
    if query.get("order", "desc") == "desc":
        items.reverse()
    ids = ["", *(item["id"] for item in items)]
    if (after := query.get("after", "")) not in ids:
        raise invalid_field("after", f"after must be the id of an item, got {after!r:.80}")
    first = ids.index(after)
    page = items[first : first + _limit(query.get("limit"))]
    has_more = first + len(page) < len(items)
    edges = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return large_reply({"object": "list", "data": page, **edges, "has_more": has_more})


def _limit(text: str | None) -> int:
    """Return the number of items of a page; raise ApiError for an invalid one."""
    if text is None:
        return ITEMS
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_ITEMS:
        raise invalid_field("limit", f"limit must be from 1 to {MOST_ITEMS}, got {text!r:.80}")
    return int(text)


def _check_includes(request: Request, response: Mapping[str, Any]) -> None:
    """Raise for a part of a response that it was created without."""
    parts = [part for item in response["output"] for part in item.get("content") or () if part.get("text")]
    lacks_logprobs = bool(parts) and not any(part.get("logprobs") for part in parts)
    for value in (value for name in INCLUDE for value in request.query_params.getlist(name)):
        if value not in INCLUDES:
            raise invalid_field("include", f"include has {value!r:.80}, and this server has {', '.join(INCLUDES)}")
        if value == LOGPROBS and lacks_logprobs:
            raise invalid_field("include", f"the response was created without {LOGPROBS}: put it into that request")


def _keep(responses: KeptResponses, request: ResponseRequest, complete: dict[str, Any]) -> None:
    if request.stored:
        responses.put(KeptResponse(request.items, request.previous, complete))


def _missing_item(name: str) -> ApiError:
    message = (
        f"there is no item {name!r:.80}: its response was sent with store=false, deleted, or dropped for later ones"
    )
    return ApiError(HTTPStatus.NOT_FOUND, message, param="input")


def _missing(name: str | None, status: int, param: str | None) -> ApiError:
    message = f"there is no response {name!r:.80}: it was sent with store=false, deleted, or dropped for later ones"
    return ApiError(status, message, param=param, code="previous_response_not_found" if param else None)
