"""Endpoints of OpenAI's API: chat completions and completions."""

from starlette.types import ASGIApp

from rekindle.server.exchange import Exchange
from rekindle.server.reading.chat import read_chat
from rekindle.server.reading.completion import read_completion
from rekindle.server.writing.chat import ChatChunks, chat_completion
from rekindle.server.writing.completion import CompletionChunks, completion


async def create_chat_completion(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/chat/completions: the next message of a conversation."""
    request = read_chat(exchange.body, exchange.model.form)
    head, handles = await exchange.head("chatcmpl"), await exchange.submit(request.call)
    if request.call.streaming is not None:
        chunks = ChatChunks(head, request, [handle.record for handle in handles])
        return exchange.stream(handles, request.call, chunks)
    return await exchange.finish(handles, request.call, lambda generations: chat_completion(head, generations, request))


async def create_completion(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/completions: the continuation of a text."""
    request = read_completion(exchange.body, exchange.limits.prompts)
    head, handles = await exchange.head("cmpl"), await exchange.submit(request.call)
    decode = exchange.model.decode
    if request.call.streaming is not None:
        chunks = CompletionChunks(head, request, [handle.record for handle in handles], decode)
        return exchange.stream(handles, request.call, chunks)
    return await exchange.finish(
        handles, request.call, lambda generations: completion(head, generations, request, decode)
    )
