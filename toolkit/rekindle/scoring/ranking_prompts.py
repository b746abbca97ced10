"""Prompts of a ranking: a question about each document, cut to the room of a prompt."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rekindle.assembly.preparing.prompt_reader import NO_IMAGES, PromptReader
from rekindle.client.batches.batch import invalid_batch
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, PicturedTokens, Prompt
from rekindle.core.request.request import check_length
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import ConversationForm, Embedding, Uses
from rekindle.formats.rendering.template import template_variables
from rekindle.results.scores.ranking import Content
from rekindle.scoring import ranking_contents
from rekindle.scoring.embedding import in_conversation, prompt_prefix
from rekindle.scoring.ranking_contents import illustrated_question

INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""Default instruction of Qwen3-Reranker."""
DOCUMENT: Final = "document {}"
"""Name of a document in errors, with its index."""
SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
"""System prompt of Qwen3-Reranker's training; other chat models follow it too."""
Writer = Callable[[Content], Prompt]
"""Writer of the prompt with a text, or with parts of a message."""


def fitted(
    requests: Requests, writers: Sequence[Writer], texts: Sequence[Content], most: int | None, output: int = 0
) -> Waits[list[Prompt]]:
    """Return the prompts with texts, each without the end of its text if there are more than `most` tokens.

    With -1 as `most`, a prompt may fill the context up to the room for `output` tokens.
    """
    pairs = list(zip(writers, texts, strict=True))
    if most is None:
        return [write(text) for write, text in pairs]
    reader = requests.engine.facts.preparer.prompts
    length = reader.capacity - output if most == -1 else most
    return (yield from in_a_thread(lambda: [_fit(reader, write, text, length) for write, text in pairs], "rerank"))


def _fit(reader: PromptReader, write: Writer, text: Content, most: int) -> Prompt:
    """Return the prompt with a text, without the end of the text if there are more than `most` tokens.

    Raises:
        InvalidRequest: the prompt has more tokens even without the text, or an image, which is not cut.
    """
    if not isinstance(text, str):
        raise InvalidRequest.of(
            "truncate_prompt_tokens", "truncate_prompt_tokens is for documents of text alone: leave it out for images"
        )
    if reader.tokenizer is not None:
        text = reader.tokenizer.near(text, most, at_end=False)
    prompt = write(text)
    excess = reader.count(prompt) - most
    if excess <= 0 or reader.tokenizer is None:
        return prompt
    tokens = reader.tokenizer.encode_chat(text)
    while excess > 0 and tokens:  # the end of a cut text may take more tokens than before, so once may not suffice
        tokens = tokens[: max(0, len(tokens) - excess)]
        prompt = write(reader.tokenizer.decode(tokens))
        excess = reader.count(prompt) - most
    if excess > 0:
        raise InvalidRequest.of(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be at least {most + excess}, since the prompt has as many tokens without the "
            f"document; got {most}",
        )
    return prompt


def writers_for_embedding(defaults: Embedding, instruction: str | None, documents: int) -> list[Writer]:
    """Return the writers of the prompts of a query and of documents, which put the model's prompt before each.

    Texts and parts of messages are conversations for a model that takes texts so.
    """
    of_query, of_document = (
        prompt_prefix(defaults, name if own is None and name in defaults.prompts else own)
        for name, own in (("query", instruction), ("document", None))
    )

    def behind(prefix: str, text: Content) -> Prompt:
        if defaults.messages is not None:
            chat = in_conversation(defaults.messages, text, prefix, {})
            assert isinstance(chat, Conversation), "only a conversation may have a system message of its own"
            return chat
        assert isinstance(text, str), "models for embeddings of texts alone rank texts"
        return prefix + text

    return [partial(behind, of_query), *([partial(behind, of_document)] * documents)]


def question_writer(reader: PromptReader, uses: Uses, instruction: str | None, query: Content) -> Writer:
    """Return the writer of the question about a document.

    A template with a query and a document decides the form, as in sentence-transformers. Others have the question of
    Qwen3-VL-Reranker for a model with images, else Qwen3-Reranker's.
    """
    tokenizer = reader.tokenizer
    if tokenizer is not None and tokenizer.chat_template is None:
        raise InvalidRequest(
            "rerank() needs the model's chat template, and the model has none: pass chat_template= to open(), or write "
            "the texts yourself for classify() or score()"
        )
    form = uses.embedding.messages
    if tokenizer is not None and form is not None and _has_roles(tokenizer.chat_template or ""):
        return partial(_pair, form, prompt_prefix(uses.embedding, instruction), query)
    if reader.images is not None:
        instruct = ranking_contents.INSTRUCTION if instruction is None else instruction
        return partial(illustrated_question, SYSTEM, instruct, query)
    instruct = INSTRUCTION if instruction is None else instruction
    return partial(question, tokenizer, instruct, query)


def _has_roles(template: str) -> bool:
    """Test a chat template for messages of a query and of a document."""
    return all(re.search(f"['\"]{role}['\"]", template) for role in ("query", "document"))


def _pair(form: ConversationForm, instruction: str, query: Content, document: Content) -> Conversation:
    """Return the messages of a query and of a document, behind the instruction."""
    messages = [form.message("system", instruction)] if instruction else []
    messages += [form.message("query", query), form.message("document", document)]
    return Conversation(messages, None, form.variables)


def question(tokenizer: Tokenizer | None, instruction: str, query: Content, document: Content) -> Conversation:
    """Return the conversation for judging a document's relevance, with reasoning disabled.

    Raises:
        InvalidRequest: the query or the document has images, and the model takes none.
    """
    if not isinstance(query, str) or not isinstance(document, str):
        raise InvalidRequest.of("prompt", NO_IMAGES)
    thinks = tokenizer is not None and "enable_thinking" in template_variables(tokenizer.chat_template or "")
    content = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
    return Conversation(messages, None, {"enable_thinking": False} if thinks else {})


def one_token(tokenizer: Tokenizer, word: str) -> int:
    """Return the token id of a word.

    Raises:
        InvalidRequest: the word is not one token.
    """
    ids = tokenizer.encode_chat(word)
    if len(ids) != 1:
        raise InvalidRequest(f"rerank() needs {word!r} as one token, but the model's tokenizer gives {len(ids)} tokens")
    return ids[0]


def tokenize_questions(
    reader: PromptReader, prompts: Sequence[Prompt], ended: Callable[[], bool]
) -> list[PicturedTokens]:
    """Return the tokens of questions about documents.

    Args:
        reader: the reader of prompts.
        prompts: the questions.
        ended: see `PromptReader.read`.

    Raises:
        InvalidBatch: some questions are too long.
        RequestCancelled: nobody waits for the tokens.
    """
    sequences, bad = [reader.read(prompt, None, ended) for prompt in prompts], dict[int, Exception]()
    for index, tokens in enumerate(sequences):
        try:
            check_length(tokens.ids, reader.capacity)
        except InvalidRequest as error:
            bad[index] = error
    if bad:
        raise invalid_batch(bad, len(prompts), DOCUMENT.format)
    return sequences
