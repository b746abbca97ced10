"""Preparation of requests: prompts are rendered and tokenized, and requests validated."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rekindle.assembly.looking import Looks
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import (
    Continued,
    Conversation,
    Illustrated,
    PicturedTokens,
    Prompt,
    Submit,
    Verbatim,
    goes_on,
)
from rekindle.core.request.activations.changes import changes_of
from rekindle.core.request.constraint import Constrained, Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.picture import Picture
from rekindle.core.request.request import (
    Request,
    check_bans,
    check_count,
    check_length,
    check_scored,
    check_token_ids,
    namespace_of,
)
from rekindle.core.request.thoughts import ThoughtLimit
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.masks import run_steps
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.images.parts import images_in
from rekindle.formats.images.prompts import CutText, ImagePrompts
from rekindle.formats.rendering.chat import render
from rekindle.formats.responses.thoughts import check_closing, thought_limit

TOKENIZED_AT_ONCE = 2
"""Requests tokenized at once, each in a worker thread."""
ROOM = 256
"""Tokens of output beside a cut prompt, for output without a limit."""
QUICK = 4096
"""Largest count of numbers in a submission without texts that surely takes less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns submissions into validated requests of one model, for the intake and the tokenizer. Thread-safe.

    Attributes:
        tokenizer: the tokenizer; None for a model that takes token ids only.
        vocab_size: number of token ids.
        eos_ids: end tokens of the model.
        capacity: most tokens in one request, prompt and output together.
        compiler: compiler of constraints; None without a tokenizer.
        sizes: the number of layers, and the size of their residual stream.
        images: prompts with images; None for a model that takes none.
        picture_rows: the most tokens of images on the device at a time.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    eos_ids: frozenset[int]
    capacity: int
    compiler: Compiler | None = None
    sizes: tuple[int, int] = (0, 0)
    images: ImagePrompts | None = None
    picture_rows: int = 0

    @classmethod
    def of(cls, model: Checkpoint, capacity: int, picture_rows: int = 0) -> "Preparer":
        """Return the preparer for a model."""
        vocabulary = model.config.vocab_size
        compiler = None if model.tokenizer is None else Compiler(model.tokenizer, vocabulary, model.eos_ids)
        sizes = len(model.config.layers), model.config.hidden_size
        images = None
        if picture_rows and model.images is not None and model.tokenizer is not None:
            images = ImagePrompts(model.images, model.tokenizer)
        return cls(model.tokenizer, vocabulary, model.eos_ids, capacity, compiler, sizes, images, picture_rows)

    @property
    def looks(self) -> Looks:
        """The looks at sequences of the model."""
        return Looks(self.capacity, *self.sizes)

    def is_quick(self, submit: Submit) -> bool:
        """Return True if `outcome` takes less than a millisecond: no text to tokenize, and no long list."""
        params = submit.params
        if params.constraint is not None:
            return False
        words = sum(math.inf if isinstance(word, str) else len(word) for word in params.bad_words)
        lists = (params.logit_bias, params.allowed_token_ids or (), params.stop_token_ids)
        return _numbers(submit.prompt) + words + sum(map(len, lists)) <= QUICK

    def outcome(self, submit: Submit) -> Request | Exception:
        """Return the request of a submission, or the error that makes it impossible to serve."""
        try:
            ids, pictures = self.illustrated(submit.prompt, submit.params)
            ids = self.cut(ids, submit.params)
            check_length(ids + submit.output_prefix.token_ids, self.capacity, submit.params.max_tokens != 0)
            check_scored(ids, submit.params)
            if pictures and submit.params.capture is not None:
                raise InvalidRequest.of(
                    "capture", "capture is for prompts of text: call session.look(prompt, images=[...]) for images"
                )
            return replace(self._request(submit, ids), pictures=pictures)
        except Exception as error:  # any error, even of the model's chat template, belongs to one request
            return error

    def check(self, params: SamplingParams) -> None:
        """Validate parameters for this model's tokenizer and end tokens.

        Raises:
            InvalidRequest: the parameters cannot be served with any prompt.
        """
        self._request(Submit(0, (), params), ())

    def token_ids(self, prompt: Prompt, params: SamplingParams | None = None) -> tuple[int, ...]:
        """Return the token ids of a prompt without images; see `illustrated`.

        Raises:
            InvalidRequest: as in `illustrated`; or the prompt has images.
        """
        ids, pictures = self.illustrated(prompt, params)
        if pictures:
            raise InvalidRequest.of(
                "prompt", "images are for generate, stream, chats, prefixes and embeddings: give text alone here"
            )
        return ids

    def illustrated(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> tuple[tuple[int, ...], tuple[Picture, ...]]:
        """Return the token ids of a prompt of any kind, and its images.

        Args:
            prompt: the prompt.
            params: the parameters of a request with the prompt, so that a text too long for it is not read whole; None
                for a prompt of any length.

        Raises:
            InvalidRequest: the prompt cannot be tokenized, is empty, or has a token outside the vocabulary; the model
                takes no images, or one is damaged.
            PromptTooLong: a text does not fit.
        """
        if isinstance(prompt, PicturedTokens):
            return prompt.ids, prompt.pictures
        if isinstance(prompt, tuple):
            return self._without_images(check_token_ids("token_ids", prompt, self.vocab_size)), ()
        if isinstance(prompt, Continued):
            ids, pictures = self.illustrated(prompt.prefix, params)
            more_ids, more_pictures = self._more(prompt.more, params)
            return ids + more_ids, pictures + tuple(picture.moved(len(ids)) for picture in more_pictures)
        if isinstance(prompt, str):
            encoded = self._encoded(prompt, not isinstance(prompt, Verbatim), params)
            return self._without_images(check_token_ids("prompt", encoded, self.vocab_size)), ()
        tokens, pictures = self._with_images(prompt, params)
        name = "messages" if isinstance(prompt, Conversation) else "prompt"
        for picture in pictures:
            if 2 * picture.tokens > self.picture_rows:  # two may share a query block
                raise InvalidRequest.of(
                    "prompt",
                    f"an image takes {picture.tokens} tokens, and image_bytes in open() has room for images of up to "
                    f"{self.picture_rows // 2}: raise it",
                )
        return check_token_ids(name, tokens, self.vocab_size), pictures

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt of any kind.

        Raises:
            InvalidRequest: as in `token_ids`.
        """
        if isinstance(prompt, str):
            count = self._text_tokenizer().count(prompt, not isinstance(prompt, Verbatim))
        elif isinstance(prompt, Conversation) and self.images is None:
            count = self._text_tokenizer().count(self.rendered(prompt), False)
        else:
            count = 0
        return count or len(self.illustrated(prompt)[0])

    def _with_images(
        self, prompt: Conversation | Illustrated, params: SamplingParams | None
    ) -> tuple[Sequence[int], tuple[Picture, ...]]:
        """Return the token ids and the images of a prompt that may have some."""
        if self.images is None:
            if isinstance(prompt, Illustrated):
                raise _no_images()
            return self._encoded(self.rendered(prompt), False, params), ()
        if isinstance(prompt, Conversation):
            text, images, adds_special = self._cut_text(prompt), tuple(images_in(prompt.messages)), False
        else:
            text, images = self.images.cut_at_places(prompt.text, len(prompt.images)), prompt.images
            adds_special = not isinstance(prompt.text, Verbatim)
        if images and params is not None and params.truncate_prompt_tokens is not None:
            raise InvalidRequest.of(
                "truncate_prompt_tokens",
                "truncate_prompt_tokens would cut images: shorten the prompt yourself, or give fewer images",
            )
        return self.images.tokens(
            text, images, lambda tokenizer, whole: self._encoded(whole, adds_special, params, tokenizer)
        )

    def _without_images(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return token ids without tokens of images.

        Raises:
            InvalidRequest: there is one.
        """
        if self.images is not None and self.images.placeholder in ids:
            raise InvalidRequest.of(
                "prompt",
                "the prompt has the token of an image, and no image for it: give images=, or messages with images; in "
                "messages, the text of the token is plain text",
            )
        return ids

    def is_plain(self, chat: Conversation) -> bool:
        """Return True if a conversation has the tokens of its rendered text: no image, and no text of its tokens."""
        return self.images is None or self.images.is_plain((chat.messages, chat.tools, chat.variables))

    def _cut_text(self, chat: Conversation) -> CutText:
        """Return a conversation rendered by the chat template, cut at the places of its images."""
        assert self.images is not None, "the model takes images"
        return self.images.rendered(
            (chat.messages, chat.tools, chat.variables),
            lambda values: self._template_text(
                replace(chat, messages=values[0], tools=values[1], variables=values[2]),
            ),
        )

    def _text_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so it takes token_ids=[...] rather than text")
        return self.tokenizer

    def _encoded(
        self, text: str, adds_special: bool, params: SamplingParams | None, tokenizer: Tokenizer | None = None
    ) -> list[int]:
        """Return the tokens of a text by a tokenizer, or those that `cut` will keep and some more.

        Raises:
            PromptTooLong: the text does not fit.
        """
        tokenizer = tokenizer or self._text_tokenizer()
        if params is None:
            return tokenizer.encode(text, adds_special)
        most = params.truncate_prompt_tokens
        if most is not None:
            at_end = params.truncation_side == "left"
            text = tokenizer.near(text, self.capacity if most == -1 else most, at_end=at_end)
            return tokenizer.encode(text, adds_special)
        has_output = params.max_tokens != 0
        check_count(tokenizer.fewest(text, self.capacity), self.capacity, has_output, at_least=True)
        return tokenizer.encode(text, adds_special, lambda count: check_count(count, self.capacity, has_output))

    def cut(self, ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens of a prompt, cut to `truncate_prompt_tokens` if there are more."""
        most = params.truncate_prompt_tokens
        if most == -1:
            most = self.capacity - min(self._room(len(ids), params.max_tokens), self.capacity // 2)
        if most is None or len(ids) <= most:
            return ids
        if params.truncation_side == "right":
            return ids[:most]
        opening = () if self.tokenizer is None else tuple(self.tokenizer.opening_ids)
        start = opening if ids[: len(opening)] == opening and len(opening) < most else ()
        return start + ids[len(ids) - most + len(start) :]

    def _room(self, length: int, most: int | None) -> int:
        """Return the number of tokens of output, at most `most`, to leave room for when a prompt of a length is cut."""
        if most is not None:
            return most
        return 1 if length < self.capacity else ROOM  # a whole prompt is not cut for a longer answer

    def rendered(self, chat: Conversation) -> str:
        """Render a conversation by the chat template, with a placeholder for each image.

        Raises:
            InvalidRequest: the model has no chat template, the template rejects the conversation, or the model takes no
                images.
        """
        if self.images is not None:
            return self.images.joined(self._cut_text(chat))
        if next(images_in(chat.messages), None) is not None:
            raise _no_images()
        return self._template_text(chat)

    def _template_text(self, chat: Conversation) -> str:
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, and so no chat template; it takes token_ids=[...]")
        return render(
            chat.messages,
            tokenizer.chat_template if chat.tools is None else tokenizer.template_with_tools,
            tokenizer.bos_token,
            tokenizer.eos_token,
            chat.tools,
            chat.variables,
            chat.continue_final_message,
        )

    def _request(self, submit: Submit, ids: tuple[int, ...]) -> Request:
        params = submit.params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(53))  # 53 bits survive JSON in any language
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so stop strings cannot be found; use stop_token_ids")
        if not params.skip_special_tokens and self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so there is no text: leave out skip_special_tokens")
        changes = changes_of(params.steer, params.patch, len(ids), self.sizes) if ids else None
        if params.capture is not None and ids:
            self.looks.check_capture(params.capture, len(ids), params.max_tokens)
        request = Request(
            submit.request_id,
            ids,
            params,
            params.stop_token_ids if params.ignore_eos else params.stop_token_ids | self.eos_ids,
            self.capacity,
            bad_words=self._bad_words(params),
            namespace=namespace_of(params.cache_salt, submit.adapter, changes),
            hold=submit.hold,
            output_prefix=submit.output_prefix.token_ids,
            pooling=submit.pooling,
            goes_on=goes_on(submit.prompt) or params.constraint is not None,
            adapter=submit.adapter,
            changes=changes,
            repetition=submit.repetition,
            thoughts=self._thoughts(submit, ids),
            turn=submit.turn,
            synthetic=submit.synthetic,
        )
        check_bans(request, self.vocab_size)
        check_closing(request)
        return request if params.constraint is None else self._constrained(request, params.constraint)

    def _thoughts(self, submit: Submit, ids: tuple[int, ...]) -> ThoughtLimit | None:
        """Return the limit of thoughts in the answer to a prompt, or None.

        Raises:
            InvalidRequest: the model has no thoughts.
        """
        budget = submit.params.thinking_budget
        if budget is None:
            return None
        if self.tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, so thinking_budget finds no thoughts")
        tools = submit.turn is not None and bool(submit.turn.tools)
        return thought_limit(self.tokenizer, budget, ids, tools, self.vocab_size)

    def _constrained(self, request: Request, constraint: Constraint) -> Request:
        """Apply a constraint to a request.

        Raises:
            InvalidRequest: the constraint cannot be compiled, or does not allow the given beginning of the output.
            ConstraintFailed: the constraint allows nothing after this beginning, but the request needs more.
        """
        if self.compiler is None:
            raise InvalidRequest(f"the model has no tokenizer, so {constraint.kind} cannot be served")
        grammar = self.compiler.compile(constraint)
        return replace(request, constrained=Constrained(grammar, run_steps(grammar.matcher(request).start())))

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of each word, encoded at the start of a text and after a space."""
        words: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            if not isinstance(word, str):
                words[word] = None
            elif self.tokenizer is None:
                raise InvalidRequest("the model has no tokenizer, so bad_words must be sequences of token ids")
            else:
                stripped = word.lstrip()
                spellings = (stripped, " " + stripped) if word == stripped else (" " + stripped,)
                words.update((tuple(self.tokenizer.encode_chat(spelling)), None) for spelling in spellings)
        # A word without tokens bans nothing, and a word with an unknown token is never generated.
        return tuple(word for word in words if word and max(word) < self.vocab_size)

    def _more(self, prompt: Prompt, params: SamplingParams | None) -> tuple[tuple[int, ...], tuple[Picture, ...]]:
        """Return the tokens and images of a continuation, without the tokenizer's tokens around a whole prompt."""
        if isinstance(prompt, str) and self.tokenizer is not None:
            return tuple(self._encoded(prompt, False, params)), ()
        if isinstance(prompt, Illustrated):
            prompt = replace(prompt, text=Verbatim(prompt.text))
        return self.illustrated(prompt, params)


def _no_images() -> InvalidRequest:
    return InvalidRequest.of(
        "prompt", "the model takes no images: give text alone, or open a model with a vision tower, such as SmolVLM2"
    )


def _numbers(prompt: Prompt) -> float:
    """Return the number of token ids in a prompt; infinity for a prompt with text."""
    match prompt:
        case tuple():
            return len(prompt)
        case PicturedTokens(ids):
            return len(ids)
        case Continued(prefix, more):
            return _numbers(prefix) + _numbers(more)
    return math.inf
