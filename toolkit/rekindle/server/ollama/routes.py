"""Endpoints of Ollama's API: chats, answers to prompts, embeddings, and the models."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter, time
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from rekindle.client.window import WHOLE, Fit, Messages, WindowSizes, Words, fitting
from rekindle.core.concurrency.waits import blocked
from rekindle.core.errors import RekindleError
from rekindle.core.request.checks import preview
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.model_facts import ModelFacts
from rekindle.formats.rendering.efforts import SWITCHES
from rekindle.formats.rendering.system_messages import SYSTEM_ROLES
from rekindle.server.common.call import Call
from rekindle.server.common.errors import api_error_of, invalid_field
from rekindle.server.common.fields import Fields
from rekindle.server.http.exchange import Exchange
from rekindle.server.http.guards import reply
from rekindle.server.models.served import Models
from rekindle.server.models.session import ServedSession
from rekindle.server.models.tokens import tokens_of
from rekindle.server.ollama.answer import (
    API_VERSION,
    LINES,
    TAG,
    OllamaHead,
    line,
    nanoseconds,
    ollama_object,
    opened_object,
    running_object,
    show_object,
    tag_object,
)
from rekindle.server.ollama.body import (
    OllamaEmbedding,
    OllamaRequest,
    asks_to_unload,
    finish_model_body,
    read_ollama_chat,
    read_ollama_embed,
    read_ollama_embedding,
    read_ollama_generate,
)
from rekindle.server.ollama.stream import OllamaChunks


async def chat(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/chat: the next message of a conversation, in Ollama's API."""
    request = await exchange.read(read_ollama_chat, exchange.model.template)
    call = request.call
    if call is not None and request.truncates:
        call = await run_sync(_fitting, exchange, call)
    return await _answer(exchange, request, call, in_chat=True)


async def generate(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/generate: the answer to a prompt."""
    tokenizer = exchange.model.session.tokenizer
    has_template = tokenizer is not None and tokenizer.chat_template is not None
    request = await exchange.read(read_ollama_generate, exchange.model.template if has_template else None)
    call = request.call
    if call is not None and request.context:
        call = await run_sync(_after_context, exchange, call, request.context)
    return await _answer(exchange, request, call, in_chat=False)


async def _answer(exchange: Exchange, request: OllamaRequest, call: Call | None, *, in_chat: bool) -> ASGIApp:
    head = OllamaHead(exchange.model.name, time(), in_chat)
    _keep(exchange, request.keep_alive)
    if call is None:
        return reply(opened_object(head))
    handles = await exchange.submit(call)
    if call.streaming is not None:
        return exchange.stream(handles, call, OllamaChunks(head, request, call))
    return await exchange.finish(handles, call, lambda generations: ollama_object(head, generations[0], request, call))


def _keep(exchange: Exchange, keep_alive: float | None) -> None:
    """Set the time until the model closes when idle, if the request does and the server closes models."""
    if keep_alive is not None:
        exchange.service.models.keep(exchange.model.base, keep_alive)


def streams(body: Fields) -> bool:
    """Return True unless a body asks for a complete answer."""
    return body.peek(("stream",)).get("stream", True) is True


def model_in(body: Fields, models: Models) -> str | None:
    """Take the model's name, with or without the tag that Ollama adds to names without one."""
    name, former = body.take("model", str), body.take("name", str)
    name = former if name is None else name
    if name is None:
        return None
    bare, names = name.removesuffix(TAG), {card.name for card in models.cards()}
    return next((each for each in (name, bare, bare + TAG) if each in names), bare)


async def unload(name: str | None, body: Fields, models: Models, *, in_chat: bool) -> ASGIApp | None:
    """Close the model of a body that asks for it, without opening it before; return None for another body."""
    if not asks_to_unload(body):
        return None
    base = models.bases[0] if name is None else models.base_of(name)
    async with models.use_open(base):
        closes = models.keep(base, 0.0)
    return reply(opened_object(OllamaHead(name or base, time(), in_chat), "unload" if closes else "load"))


def _fitting(exchange: Exchange, call: Call) -> Call:
    """Return a call without the oldest turns of a conversation longer than the context; system messages stay."""
    session, messages = exchange.model.session, call.prompt
    options = exchange.model.without_unread(call.options, strict=exchange.body.strict)
    template = {"chat_template_kwargs": options.get("chat_template_kwargs")}
    whole = {**template, **{name: options[name] for name in ("continue_final_message", "tools") if name in options}}
    longest = exchange.model.longest

    def count(messages: Messages) -> int:
        tokenizer = session.tokenizer
        if tokenizer is not None and (fewest := tokenizer.fewest(session.render(messages, **whole), longest)) > longest:
            return fewest  # of a text far too long, which is not read whole
        return session.count_tokens(messages, **whole)

    def weigh(messages: Messages) -> int:
        own = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
        return session.count_tokens(own, **template) if own else 0

    most = options.get("max_tokens")
    sizes = WindowSizes.of(longest, most if type(most) is int else None, count, weigh)  # which is checked with the call
    try:
        window = blocked(fitting(messages, Fit("trim", WHOLE, Words(lambda: None, "")), sizes))
    except RekindleError as error:
        raise api_error_of(error, call.fields) from error
    return replace(call, prompt=window.of(messages))


def _after_context(exchange: Exchange, call: Call, context: Sequence[int]) -> Call:
    """Return a call with the token ids of an earlier conversation before those of its prompt."""
    session = exchange.model.session
    options = dict(exchange.model.without_unread(call.options, strict=exchange.body.strict))
    variables = options.pop("chat_template_kwargs", None)
    try:
        text = (
            call.prompt if isinstance(call.prompt, str) else session.render(call.prompt, chat_template_kwargs=variables)
        )
        ids = [*context, *tokens_of(session, text, special=False, field="prompt")]
    except RekindleError as error:
        raise api_error_of(error, call.fields) from error
    return replace(call, prompt=None, options={**options, "token_ids": ids})


async def embed(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/embed: vectors of texts."""
    request, start = await exchange.read(read_ollama_embed, exchange.limits.prompts), perf_counter()
    _keep(exchange, request.keep_alive)
    if not request.texts:
        return reply({"model": exchange.model.name, "embeddings": []})
    vectors, count = await _embed(exchange, request)
    times = {"total_duration": nanoseconds(perf_counter() - start), "load_duration": 0}
    facts = {**times, "prompt_eval_count": count}
    name = exchange.model.name
    return await exchange.reply(lambda: {"model": name, "embeddings": vectors.tolist(), **facts}, vectors.size)


async def create_embedding(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/embeddings: the vector of a text."""
    request = await exchange.read(read_ollama_embedding)
    _keep(exchange, request.keep_alive)
    if not request.texts:
        return reply({"embedding": []})
    vectors, _ = await _embed(exchange, request)
    return reply({"embedding": vectors[0].tolist()})


async def _embed(exchange: Exchange, request: OllamaEmbedding) -> tuple[Any, int]:
    """Return vectors, (texts, dimensions) float32, and the number of tokens in their texts."""
    session = exchange.model.session
    inputs, count = await run_sync(_inputs, session, request, exchange.model.longest)
    options = {"dimensions": request.dimensions, "adapter": exchange.model.adapter, "progress": False}
    try:
        vectors = await exchange.run(lambda: session.embed(**inputs, **options))
    except RekindleError as error:
        raise api_error_of(error, {"texts": "input", "token_ids": "input"}) from error
    return vectors, count


def _inputs(session: ServedSession, request: OllamaEmbedding, longest: int) -> tuple[dict[str, Any], int]:
    """Return the keywords of the session for texts, of which long ones are cut; and the number of tokens.

    Texts that become conversations are not cut.
    """
    tokenizer = session.tokenizer
    if tokenizer is None:
        return {"texts": request.texts}, 0
    if session.embedding_chat("") is not None:
        chats = [session.embedding_chat(text) or ([], {}) for text in request.texts]
        counts = [session.count_tokens(chat, chat_template_kwargs=variables) for chat, variables in chats]
        return {"texts": request.texts}, sum(counts)
    texts = [session.text_prefix + text for text in request.texts]
    counts = [session.count_tokens(text) for text in texts]
    if not request.truncates and (long := next(filter(tokenizer.is_cut, texts), None)) is not None:
        raise invalid_field(
            "truncate",
            f"truncate is false, and a text ({preview(long)}) has more than the {tokenizer.longest} tokens that the "
            "model's files allow: shorten it, or leave truncate out",
        )
    if not request.truncates or max(counts) <= longest:
        return {"texts": request.texts}, sum(counts)
    ids = [_cut(tokenizer, text, longest) for text in texts]
    return {"token_ids": ids, "instruction": ""}, sum(len(each) for each in ids)


def _cut(tokenizer: Tokenizer, text: str, longest: int) -> list[int]:
    """Return at most `longest` token ids of a text, with the special token at its end if there is one."""
    ids = tokenizer.encode(tokenizer.near(text, longest, at_end=False))
    if len(ids) > longest and ids[-1] in tokenizer.special_ids:
        return [*ids[: longest - 1], ids[-1]]
    return ids[:longest]


async def show(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/show: the description of a model."""
    await exchange.read(finish_model_body)
    model, template = exchange.model, exchange.model.template
    tokenizer = model.session.tokenizer
    facts = await run_sync(lambda: model.session.model)  # the first time, it reads files
    abilities = {
        "completion": facts.generates,
        "embedding": not facts.generates,
        "tools": tokenizer is not None and tokenizer.chat_template is not None,
        "vision": model.session.takes_images,
        "thinking": template.form.reasoning_key is not None or bool({*SWITCHES} & {*template.variables}),
    }
    source = None if tokenizer is None else tokenizer.chat_template
    names = [name for name in abilities if abilities[name]]
    return reply(show_object(facts, model.since, model.longest, source, names))


async def pull(exchange: Exchange) -> ASGIApp:
    """Serve POST /api/pull: a model of this server needs no download, and others are errors."""
    if not await exchange.read(finish_model_body):
        return reply({"status": "success"})
    lines = b"".join(line({"status": status}) for status in ("pulling manifest", "success"))
    return Response(lines, headers={"content-type": LINES})


class OllamaRoutes:
    """The endpoints about the models of a server.

    Args:
        models: the models.
    """

    def __init__(self, models: Models):
        self._models = models
        self._facts: dict[str, ModelFacts] = {}  # of each model seen open

    async def tags(self, request: Request) -> Response:
        """Serve GET /api/tags: the models, and their adapters."""
        weights = await self._look()
        tags = [
            tag_object(card.name, card.since, self._facts.get(card.base), weights.get(card.base, 0))
            for card in self._models.cards()
        ]
        return reply({"models": tags})

    async def running(self, request: Request) -> Response:
        """Serve GET /api/ps: the models in memory."""
        weights = await self._look()
        tags = [
            running_object(
                tag_object(model.base, model.since, self._facts[model.base]),
                weights[model.base],
                model.longest,
                self._models.closes_in(model.base),
            )
            for model in self._models.open_models()
            if model.base in weights
        ]
        return reply({"models": tags})

    async def version(self, request: Request) -> Response:
        """Serve GET /api/version: the version of Ollama's API."""
        return reply({"version": API_VERSION})

    async def _look(self) -> dict[str, int]:
        """Note the facts about the open models, and return the bytes of the weights of each."""
        models = self._models.open_models()
        self._facts |= await run_sync(lambda: {model.base: model.session.model for model in models})  # reads files
        return {model.base: model.session.memory.weights for model in models}
