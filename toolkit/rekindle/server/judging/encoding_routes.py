"""Endpoints without generation: embeddings and tokens."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from anyio.to_thread import run_sync
from starlette.types import ASGIApp

from rekindle.core.errors import InvalidBatch, InvalidRequest, RekindleError
from rekindle.formats.images.parts import images_in
from rekindle.server.common.errors import api_error_of, invalid_field
from rekindle.server.http.exchange import Exchange
from rekindle.server.judging.body import PoolRequest
from rekindle.server.judging.encoding_answer import embeddings, pieces_object, tokens_object
from rekindle.server.judging.encoding_body import (
    EmbeddingRequest,
    EncodingInputs,
    TokenizeRequest,
    read_detokenize,
    read_embedding,
    read_tokenize,
)
from rekindle.server.models.served import ServedModel
from rekindle.server.models.session import ServedSession
from rekindle.server.models.tokens import tokens_of

T = TypeVar("T")


async def create_embeddings(exchange: Exchange) -> ASGIApp:
    """Serve POST /v1/embeddings: vectors of texts."""
    request = await exchange.read(read_embedding, exchange.limits.prompts, exchange.model.form)
    is_pictured = request.inputs.is_pictured
    prompt = named_prompt(exchange.model.session, request.prompts)
    work = partial(vectors_of, exchange, request, normalize=request.normalize, prompt=prompt)
    vectors, count = await exchange.run(work, is_pictured=is_pictured)
    return await exchange.reply(lambda: embeddings(vectors, exchange.model.name, count, request.encoding), vectors.size)


async def tokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /tokenize: the tokens of a text or a conversation."""
    model = exchange.model
    request = await exchange.read(read_tokenize, model.form)
    options = model.without_unread(request.options, strict=exchange.body.strict)
    tokens = await run_sync(_tokens, model.session, replace(request, options=options))

    def write() -> dict[str, Any]:
        if not (request.with_texts or request.with_pieces):
            return tokens_object(tokens, model.longest, None)
        text_of = {token: model.session.decode([token]) for token in set(tokens)}
        texts = [text_of[token] for token in tokens]
        return pieces_object(tokens, texts) if request.with_pieces else tokens_object(tokens, model.longest, texts)

    return await exchange.reply(write, len(tokens))


async def detokenize(exchange: Exchange) -> ASGIApp:
    """Serve POST /detokenize: the text of tokens."""
    tokens = await exchange.read(read_detokenize)
    text = await run_sync(exchange.model.session.decode, tokens)
    return await exchange.reply(lambda: {"prompt": text, "content": text}, len(tokens))  # vLLM's name, and llama.cpp's


def _tokens(session: ServedSession, request: TokenizeRequest) -> Sequence[int]:
    text = request.text
    if text is None:
        assert request.messages is not None, "a request has text or messages"
        text = session.render(request.messages, **request.options)
    return tokens_of(session, text, request.special, "prompt" if request.messages is None else "messages")


def named_prompt(session: ServedSession, names: Sequence[str]) -> str | None:
    """Return the first of these names that the model has a prompt by; None for its default."""
    return next((name for name in names if name in session.embedding_prompts), None)


async def vectors_of(
    exchange: Exchange,
    request: EmbeddingRequest | PoolRequest,
    *,
    normalize: bool | None = None,
    prompt: str | None = None,
) -> tuple[Any, int]:
    """Return the embeddings of the texts of a request, and the number of their tokens; `prompt` as in `prompts_of`."""
    options = {"normalize": normalize, "dimensions": request.dimensions, "cache_salt": request.cache_salt}
    session = exchange.model.session
    return await without_answers(
        exchange, request.inputs, partial(session.embed, **options), embeds=True, prompt=prompt
    )


async def without_answers(
    exchange: Exchange,
    inputs: EncodingInputs,
    compute: Callable[..., Awaitable[T]],
    *,
    embeds: bool = False,
    prompt: str | None = None,
) -> tuple[T, int]:
    """Return the result of a session call for the prompts of a body, and the number of their tokens.

    Args:
        exchange: the exchange with the client.
        inputs: the prompts of the body.
        compute: the call.
        embeds, prompt: see `prompts_of`.

    Raises:
        ApiError: a prompt is invalid; it is named by its place in the body.
    """
    try:
        prompts, count = await run_sync(partial(prompts_of, exchange, inputs, embeds=embeds, prompt=prompt))
        return await compute(**prompts, adapter=exchange.model.adapter, progress=False), count
    except RekindleError as error:
        raise api_error_of(error, inputs.fields) from error


def prompts_of(
    exchange: Exchange, inputs: EncodingInputs, *, embeds: bool, prompt: str | None = None
) -> tuple[dict[str, Any], int]:
    """Return the keywords of a session call for several prompts, and the number of their tokens.

    With `embeds`, the call is `embed`, which puts a prompt of the model before each text: the one with the name
    `prompt`, or the default.

    Conversations without images become token ids. If texts and token ids are mixed, or the tokens of texts are not
    those by default, all become token ids, those of texts with their prefix. If the model's files have the form of
    messages, texts and conversations for `embed` are conversations in it.
    """
    session = exchange.model.session
    in_chat = embeds and session.embedding_chat("") is not None
    if in_chat and prompt is None:
        keywords, count = prompts_of(exchange, _in_conversations(session, inputs), embeds=False)
        return {**keywords, "instruction": ""}, count
    model, prompts, prefix = exchange.model, inputs.prompts, session.text_prefix if embeds else ""
    are_texts = all(isinstance(each, str) for each in prompts)
    if prompt is not None:
        prefix = _named(session.embedding_prompts, prompt)
        if not are_texts:
            raise InvalidRequest(f"the model's prompt {prompt!r} goes before texts only: leave it out for other inputs")
    if are_texts:
        prompts = [prefix + each for each in prompts]
    # In a conversation, a named prompt is the system message, and texts are not cut.
    if are_texts and inputs.special and (inputs.most_tokens is None or in_chat):
        named = {} if prompt is None else {"instruction": prompt}
        return {"texts": list(inputs.prompts), **named}, sum(_of_each(model.session.count_tokens, prompts))
    variables = {"add_generation_prompt": False, **(inputs.template.get("chat_template_kwargs") or {})}
    template = {**inputs.template, "chat_template_kwargs": variables} if inputs.template else inputs.template
    template = model.without_unread(template, strict=exchange.body.strict)
    if template and next(images_in(prompts[0]), None) is not None:
        return {"texts": list(prompts), **template}, model.session.count_tokens(prompts[0], **template)
    ids = list(_of_each(partial(_shortened, model, replace(inputs, template=template)), prompts))
    has_prompt = are_texts and (bool(prefix) or prompt is not None)
    return {"token_ids": ids, **({"instruction": ""} if has_prompt else {})}, sum(map(len, ids))


def _named(prompts: Mapping[str, str], name: str) -> str:
    """Return a prompt of the model by its name."""
    if name not in prompts:
        raise InvalidRequest(f"the model has no prompt named {name!r:.80} (it has: {', '.join(prompts) or 'none'})")
    return prompts[name]


def _in_conversations(session: ServedSession, inputs: EncodingInputs) -> EncodingInputs:
    """Return prompts as conversations in the form of the model's files; token ids stay."""
    chats, variables = list[Any](), dict[str, Any]()
    for prompt in inputs.prompts:
        chat = None if _is_ids(prompt) else session.embedding_chat(prompt)
        chats.append(prompt if chat is None else chat[0])
        variables |= {} if chat is None else chat[1]
    variables = {} if inputs.template.get("continue_final_message") else variables
    own = inputs.template.get("chat_template_kwargs") or {}
    template = {**inputs.template, "chat_template_kwargs": {**variables, **own}}
    return replace(inputs, prompts=chats, special=False, template=template)


def _of_each(work: Callable[[Any], T], prompts: Sequence[Any]) -> Iterator[T]:
    """Yield the result of work for each prompt.

    Raises:
        InvalidBatch: the work refuses a prompt.
    """
    for index, prompt in enumerate(prompts):
        try:
            yield work(prompt)
        except InvalidRequest as error:
            raise InvalidBatch(str(error), {index: error}, len(prompts)) from error


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], int)


def _shortened(model: ServedModel, inputs: EncodingInputs, prompt: Any) -> list[int]:
    """Return the token ids of a prompt, cut if it is too long; the special tokens around a text stay."""
    if model.session.tokenizer is None and isinstance(prompt, str):
        raise invalid_field("input", "input has texts, and the model has no tokenizer: give token ids alone")
    most = model.longest if inputs.most_tokens == -1 else inputs.most_tokens
    if most is not None and isinstance(prompt, str) and model.session.tokenizer is not None:
        prompt = model.session.tokenizer.near(prompt, most, at_end=inputs.keeps_end)
    before, inner, after = _parts(model.session, prompt, inputs)
    if most is not None:
        room = max(0, most - len(before) - len(after))
        inner = inner[max(0, len(inner) - room) :] if inputs.keeps_end else inner[:room]
    return [*before, *inner, *after]


def _parts(session: ServedSession, prompt: Any, inputs: EncodingInputs) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens before a prompt, its own tokens, and the special tokens after it."""
    if _is_ids(prompt):
        return [], prompt, []
    text = prompt if isinstance(prompt, str) else session.render(prompt, **inputs.template)
    inner = session.encode(text)
    if session.tokenizer is None or not inputs.special:
        return [], inner, []
    whole = session.tokenizer.encode(text)
    if session.tokenizer.longest is not None:  # both are cut, so that one is no part of the other
        around = session.tokenizer.encode("")
        start = len(session.tokenizer.opening_ids)
        end = len(whole) - len(around) + start
        return whole[:start], whole[start:end], whole[end:]
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return whole[:start], inner, whole[start + len(inner) :]
    return [], whole, []
