"""Endpoint of completions."""

from dataclasses import replace

from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.server.common.call import Call
from rekindle.server.common.errors import invalid_field
from rekindle.server.http.exchange import Exchange
from rekindle.server.models.session import ServedSession
from rekindle.server.models.tokens import tokens_of
from rekindle.server.openai.completions.answer import completion
from rekindle.server.openai.completions.body import read_completion
from rekindle.server.openai.completions.stream import CompletionChunks


async def create_completion(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/completions: the continuation of a text."""
    request = await exchange.read(read_completion, exchange.limits.prompts)
    request = replace(request, call=replace(request.call, end=exchange.model.end))
    if request.is_mixed:
        request = replace(request, call=await run_sync(_with_ids, exchange.model.session, request.call))
    head, handles = await exchange.head("cmpl"), await exchange.submit(request.call)
    decode = exchange.model.decode
    if request.call.streaming is not None:
        chunks = CompletionChunks(head, request, [handle.record for handle in handles], decode)
        return exchange.stream(handles, request.call, chunks)
    return await exchange.finish(
        handles, request.call, lambda generations: completion(head, generations, request, decode)
    )


def _with_ids(session: ServedSession, call: Call) -> Call:
    """Return a call with the token ids of its prompts, which are texts and lists of token ids."""
    options = dict(call.options)
    if session.tokenizer is None:
        raise invalid_field("prompt", "prompt has texts, and the model has no tokenizer: give token ids alone")
    special = options.pop("add_special_tokens", True)
    ids = [tokens_of(session, each, special, "prompt") if isinstance(each, str) else each for each in call.prompt]
    return replace(call, prompt=None, options={**options, "token_ids": ids})
