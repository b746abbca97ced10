"""Reading of prompts: texts, conversations and token ids become tokens, with the images among them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, Conversation, Illustrated, KnownTokens, PicturedTokens, Prompt, Verbatim
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.picture import Picture
from rekindle.core.request.request import check_count, check_token_ids
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.images.parts import images_in
from rekindle.formats.images.room import Ended, never
from rekindle.formats.rendering.chat import render
from rekindle.formats.rendering.named_templates import remedy

if TYPE_CHECKING:
    from rekindle.formats.images.prompts import CutText, Encode, ImagePrompts

ROOM = 256
"""Tokens of output beside a cut prompt, for output without a limit."""
NO_IMAGES = "the model takes no images: give text alone, or open a model with a vision tower, such as SmolVLM2"
NO_MMPROJ = (
    "the model takes no images: give text alone, or open a model with a vision tower, such as SmolVLM2; for a model "
    "with one in another GGUF file, give that as mmproj=, a path or owner/name/mmproj-FILE.gguf"
)

NO_TOWER = (
    "the model takes no images: its config has a vision tower, and its files are those of the text model alone. Open "
    "the files of the whole model"
)
NO_ROOM = "the session takes no images: it was opened with image_bytes=0, which leaves no room for them"


@dataclass(frozen=True, slots=True)
class _PromptLayout:
    """A prompt with images.

    Attributes:
        text: its text, cut at the places of the images.
        images: the images with their details.
        name: its name in errors.
        adds_special: whether the tokenizer adds its special tokens.
    """

    text: "CutText"
    images: Sequence[Any]
    name: str
    adds_special: bool


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads prompts of one model, of any kind. Thread-safe.

    Attributes:
        tokenizer: the tokenizer; None for a model that takes token ids only.
        vocab_size: number of token ids, with those of each type of token.
        capacity: most tokens in one request, prompt and output together.
        images: prompts with images; None for a model that takes none.
        picture_rows: the most tokens of images on the device at a time.
        no_images: the reason why the model takes no images, with a remedy.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    capacity: int
    images: "ImagePrompts | None" = None
    picture_rows: int = 0
    no_images: str = NO_IMAGES

    @classmethod
    def of(cls, model: Checkpoint, capacity: int, picture_rows: int = 0) -> "PromptReader":
        """Return the reader of a model's prompts."""
        images = None
        if picture_rows and model.images is not None and model.tokenizer is not None:
            from rekindle.formats.images.prompts import ImagePrompts

            images = ImagePrompts(model.images, model.tokenizer)
        no_images = _reason(model)
        return cls(model.tokenizer, model.config.typed_ids, capacity, images, picture_rows, no_images)

    def read(self, prompt: Prompt, params: SamplingParams | None = None, ended: Ended = never) -> PicturedTokens:
        """Return the tokens of a prompt of any kind.

        Args:
            prompt: the prompt.
            params: the parameters of a request with the prompt: the tokens are cut as they say, and a text too long for
                them is not read whole. None for a prompt of any length.
            ended: returns True once nobody waits for the tokens; asked before and while images are decoded.

        Raises:
            InvalidRequest: the prompt cannot be tokenized, is empty, or has a token outside the vocabulary; the model
                takes no images, or one is damaged.
            PromptTooLong: a text does not fit.
            RequestCancelled: nobody waits for the tokens.
        """
        whole = self._read(prompt, params, ended)
        return whole if params is None else self.cut(whole, params)

    def token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt without images.

        Raises:
            InvalidRequest: as in `read`; or the prompt has images.
        """
        tokens = self.read(prompt)
        if tokens.pictures:
            raise InvalidRequest.of(
                "prompt", "images are for generate, stream, chats, prefixes and embeddings: give text alone here"
            )
        return tokens.ids

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt of any kind. No image is decoded for it.

        Raises:
            InvalidRequest: as in `token_ids`.
        """
        if isinstance(prompt, Continued):
            return self.count(prompt.prefix) + (self.count(_verbatim(prompt.more)) if prompt.more != "" else 0)
        if isinstance(prompt, str):
            count = self._text_tokenizer().count(prompt, not isinstance(prompt, Verbatim))
        elif isinstance(prompt, KnownTokens):
            count = len(prompt.ids)
        elif isinstance(prompt, Conversation) and self.images is None:
            count = self._text_tokenizer().count(self.rendered(prompt), False)
        elif isinstance(prompt, Conversation | Illustrated) and self.images is not None:
            layout = self._layout_of(prompt)
            count = len(self.images.ids(layout.text, layout.images, self._encoder(layout, None)))
        else:
            count = 0
        return count or len(self.read(prompt).ids)

    def cut(self, prompt: PicturedTokens, params: SamplingParams) -> PicturedTokens:
        """Return a prompt, cut to at most `truncate_prompt_tokens`.

        An image stays or leaves as a whole, with its text.

        Raises:
            InvalidRequest: there is no room for the image at the end that stays.
        """
        ids, most = prompt.ids, params.truncate_prompt_tokens
        if most == -1:
            most = self.capacity - min(self._room(len(ids), params.max_tokens), self.capacity // 2)
        if most is None or len(ids) <= most:
            return prompt
        start: tuple[int, ...] = ()
        first, last = 0, most
        if params.truncation_side == "left":
            opening = () if self.tokenizer is None else tuple(self.tokenizer.opening_ids)
            start = opening if ids[: len(opening)] == opening and len(opening) < most else ()
            first, last = len(ids) - most + len(start), len(ids)
        pictures = []
        for picture in prompt.pictures:
            begin, end = self._span(picture)
            first = end if begin < first < end else first
            last = begin if begin < last < end else last
            if first <= begin < last:
                pictures.append(picture)
        if first >= last:
            raise InvalidRequest.of(
                "truncate_prompt_tokens",
                f"truncate_prompt_tokens must have room for the image at the end that stays, got {most}",
            )
        return PicturedTokens(start + ids[first:last], tuple(each.moved(len(start) - first) for each in pictures))

    def rendered(self, chat: Conversation) -> str:
        """Render a conversation by the chat template, with a placeholder for each image.

        Raises:
            InvalidRequest: the model has no chat template, the template rejects the conversation, or the model takes no
                images.
        """
        if self.images is not None:
            return self.images.joined(self._cut_text(chat))
        if next(images_in(chat.messages), None) is not None:
            raise self._without_tower()
        return self._template_text(chat)

    def is_plain(self, chat: Conversation) -> bool:
        """Return True if all placeholders in the text of a conversation are images, and none are words."""
        return self.images is None or self.images.is_plain((chat.messages, chat.tools, chat.variables))

    def _read(self, prompt: Prompt, params: SamplingParams | None, ended: Ended) -> PicturedTokens:
        match prompt:
            case PicturedTokens():
                return prompt
            case tuple():
                return self._without_images(check_token_ids("token_ids", prompt, self.vocab_size))
            case Continued(prefix, more):
                first, rest = self._read(prefix, params, ended), self._more(more, params, ended)
                moved = tuple(picture.moved(len(first.ids)) for picture in rest.pictures)
                return PicturedTokens(first.ids + rest.ids, first.pictures + moved)
            case str():
                encoded = self._encoded(prompt, not isinstance(prompt, Verbatim), params)
                return self._without_images(check_token_ids("prompt", encoded, self.vocab_size))
            case KnownTokens(ids, images):
                if self.images is None:
                    raise self._without_tower()
                pictures = self.images.pictures(check_token_ids("prompt", ids, self.vocab_size), images, ended)
                self._check_sizes(pictures)
                return PicturedTokens(ids, pictures)
        return self._with_images(prompt, params, ended)

    def _with_images(
        self, prompt: Conversation | Illustrated, params: SamplingParams | None, ended: Ended
    ) -> PicturedTokens:
        """Return the tokens of a prompt that may have images."""
        if self.images is None:
            if isinstance(prompt, Illustrated):
                raise self._without_tower()
            ids = self._encoded(self.rendered(prompt), False, params)
            return PicturedTokens(check_token_ids("messages", ids, self.vocab_size), ())
        layout = self._layout_of(prompt)
        if layout.images and params is not None and params.truncate_prompt_tokens is not None:
            params = None  # `cut` needs the tokens of whole images
        tokens, pictures = self.images.tokens(layout.text, layout.images, self._encoder(layout, params), ended)
        self._check_sizes(pictures)
        return PicturedTokens(check_token_ids(layout.name, tokens, self.vocab_size), pictures)

    def _layout_of(self, prompt: Conversation | Illustrated) -> "_PromptLayout":
        """Return the text of a prompt, cut at the places of its images."""
        assert self.images is not None, "the model takes images"
        if isinstance(prompt, Conversation):
            return _PromptLayout(self._cut_text(prompt), tuple(images_in(prompt.messages)), "messages", False)
        text = self.images.cut_at_places(prompt.text, len(prompt.images))
        return _PromptLayout(text, prompt.images, "prompt", not isinstance(prompt.text, Verbatim))

    def _encoder(self, layout: "_PromptLayout", params: SamplingParams | None) -> "Encode":
        return lambda tokenizer, whole: self._encoded(whole, layout.adds_special, params, tokenizer)

    def _span(self, picture: Picture) -> tuple[int, int]:
        """Return the index of the first token of an image's text in a prompt, and the index after its last one."""
        assert self.images is not None, "the model takes images"
        before, after = self.images.around(picture)
        return int(picture.positions[0]) - before, int(picture.positions[-1]) + 1 + after

    def _check_sizes(self, pictures: Sequence[Picture]) -> None:
        for picture in pictures:
            if 2 * picture.tokens > self.picture_rows:  # two may share a query block
                raise InvalidRequest.of(
                    "prompt",
                    f"an image takes {picture.tokens} tokens, and image_bytes in open() has room for images of up to "
                    f"{self.picture_rows // 2}: raise it",
                )

    def _without_images(self, ids: tuple[int, ...]) -> PicturedTokens:
        """Return token ids as tokens without images.

        Raises:
            InvalidRequest: one is the token of an image.
        """
        if self.images is not None and self.images.has_tokens(ids):
            raise InvalidRequest.of(
                "prompt",
                "the prompt has the token of an image, and no image for it: give messages with their images, where the "
                "text of the token is plain text; in Python, also images=",
            )
        return PicturedTokens(ids, ())

    def _cut_text(self, chat: Conversation) -> "CutText":
        """Return a conversation rendered by the chat template, cut at the places of images."""
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
        """Return the tokens of a text by a tokenizer, or only the part for `cut` and some more.

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

    def _room(self, length: int, most: int | None) -> int:
        """Return the number of tokens of output, at most `most`, to leave room for when a prompt of a length is cut."""
        if most is not None:
            return most
        return 1 if length < self.capacity else ROOM  # a whole prompt is not cut for a longer answer

    def _template_text(self, chat: Conversation) -> str:
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise InvalidRequest("the model has no tokenizer, and so no chat template; it takes token_ids=[...]")
        template = tokenizer.chat_template if chat.tools is None else tokenizer.template_with_tools
        if template is None:
            raise InvalidRequest.of(
                "chat_template",
                "the model has no chat template, so messages cannot be rendered to a prompt: "
                f"{remedy(tokenizer.special_texts)}; or pass the prompt as str, which a base model continues",
            )
        return render(
            chat.messages,
            template,
            tokenizer.bos_token,
            tokenizer.eos_token,
            chat.tools,
            chat.variables,
            chat.continue_final_message,
        )

    def _without_tower(self) -> InvalidRequest:
        """Return the error about an image for a model that takes none."""
        return InvalidRequest.of("prompt", self.no_images)

    def _more(self, prompt: Prompt, params: SamplingParams | None, ended: Ended) -> PicturedTokens:
        """Return the tokens of a continuation, without the tokenizer's tokens around a whole prompt."""
        if isinstance(prompt, str) and self.tokenizer is not None:
            return PicturedTokens(tuple(self._encoded(prompt, False, params)), ())
        return self._read(_verbatim(prompt), params, ended)


def _verbatim(prompt: Prompt) -> Prompt:
    """Return a prompt without the tokenizer's tokens around its text."""
    if isinstance(prompt, Illustrated):
        return replace(prompt, text=Verbatim(prompt.text))
    return Verbatim(prompt) if isinstance(prompt, str) else prompt


def _reason(model: Checkpoint) -> str:
    """Return the reason why a session of a model takes no images, with a remedy."""
    if model.vision is not None and model.images is not None:
        return NO_ROOM
    if model.is_gguf:
        return NO_MMPROJ
    return NO_IMAGES if model.images is None else NO_TOWER
