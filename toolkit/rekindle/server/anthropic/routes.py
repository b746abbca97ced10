"""Endpoints of Anthropic's API: messages, and the number of tokens in them."""

from time import time
from uuid import uuid4

from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.core.errors import RekindleError
from rekindle.server.anthropic.answer import message_object
from rekindle.server.anthropic.body import read_count, read_messages
from rekindle.server.anthropic.stream import MessageChunks
from rekindle.server.common.errors import api_error_of
from rekindle.server.common.events import Head
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply


async def create_message(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/messages: the next message of a conversation, in Anthropic's API."""
    request = await exchange.read(read_messages, exchange.model.template)
    head = Head(f"msg_{uuid4().hex}", int(time()), exchange.model.name)
    handles = await exchange.submit(request.call)
    if request.call.streaming is not None:
        return exchange.stream(handles, request.call, MessageChunks(head, request))
    return await exchange.finish(
        handles, request.call, lambda generations: message_object(head, generations[0], request)
    )


async def count_message_tokens(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/messages/count_tokens: the number of tokens in a conversation."""
    model = exchange.model
    prompt, options = await exchange.read(read_count, model.template)
    used = model.without_unread(options, strict=exchange.body.strict)
    try:
        count = await run_sync(lambda: model.session.count_tokens(prompt, **used))
    except RekindleError as error:
        raise api_error_of(error, {"prompt": "messages"}) from error
    return reply({"input_tokens": count})
