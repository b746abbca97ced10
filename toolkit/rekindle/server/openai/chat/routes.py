"""Endpoint of chat completions."""

from dataclasses import replace

from starlette.types import ASGIApp

from rekindle.server.http.exchange import Exchange
from rekindle.server.openai.chat.answer import chat_completion
from rekindle.server.openai.chat.body import read_chat
from rekindle.server.openai.chat.stream import ChatChunks


async def create_chat_completion(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/chat/completions: the next message of a conversation."""
    request = await exchange.read(read_chat, exchange.model.form)
    request = replace(request, call=replace(request.call, end=exchange.model.end))
    head, handles = await exchange.head("chatcmpl"), await exchange.submit(request.call)
    if request.call.streaming is not None:
        chunks = ChatChunks(head, request, [handle.record for handle in handles])
        return exchange.stream(handles, request.call, chunks)
    return await exchange.finish(handles, request.call, lambda generations: chat_completion(head, generations, request))
