"""Prompts with images: the text of each image in its place, and the positions of its tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.core.models.vision.patches import Patches
from rekindle.core.request.picture import Picture
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.words import quantity
from rekindle.formats.images.literals import Disguise, PrivateTokens
from rekindle.formats.images.memory import ImageIdentity, ImageMemory
from rekindle.formats.images.parts import images_in, with_places
from rekindle.formats.images.processors.processor import ImageProcessor, grid_of, tokens_of
from rekindle.formats.images.sources import ImageSource

Encode = Callable[[Tokenizer, str], Sequence[int]]
"""Returns the tokens of a whole text; checks its length."""
Values = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, Mapping[str, Any]]
"""Messages, tools and variables of a chat template."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """The pixels of an image in a prompt; picklable.

    Attributes:
        image: the file or the pixels.
        processor: the rules of the model.
    """

    image: ImageSource
    processor: ImageProcessor

    def patches(self) -> Patches:
        """Return the patches of the image, with padding up to one of the processor's lengths of segments.

        Raises:
            InvalidRequest: the file is damaged.
        """
        patches = self.processor.patches(self.image.pixels())
        length = patches.valid.shape[1]
        return patches.padded(next(each for each in self.processor.segments if each >= length))

    def grids(self) -> tuple[np.ndarray, ...]:
        """Return the layouts of the image's embeddings; see `ImageProcessor.grids`.

        Raises:
            InvalidRequest: the file is damaged.
        """
        height, width, _ = self.image.pixels().shape
        return self.processor.grids(height, width)


@dataclass(frozen=True, slots=True)
class CutText:
    """The text of a prompt, cut at the places of its images.

    Attributes:
        pieces: the texts before, between and after the images.
        is_plain: whether texts of image tokens in the pieces are plain text.
    """

    pieces: tuple[str, ...]
    is_plain: bool = False


class ImagePrompts:
    """Tokens and images of prompts for one model. Thread-safe.

    Args:
        processor: the rules of the model for images.
        tokenizer: its tokenizer.

    Attributes:
        memory: the identities of images seen so far.
        placeholder: the id of the token for an embedding.
    """

    def __init__(self, processor: ImageProcessor, tokenizer: Tokenizer):
        self._processor, self._words, self._tokenizer = processor, processor.words, tokenizer
        self.memory = ImageMemory()
        self.placeholder = tokenizer.backend.token_to_id(self._words.placeholder)
        added = {entry.content for entry in tokenizer.backend.get_added_tokens_decoder().values()}
        self._texts = [text for text in self._words.texts if text in added]

    @cached_property
    def _private(self) -> PrivateTokens:
        return PrivateTokens(self._tokenizer, self._texts)

    def is_plain(self, values: Values) -> bool:
        """Return True for a conversation without texts of image tokens in its words."""
        return not Disguise(self._texts).is_needed(values)

    def rendered(self, values: Values, render: Callable[[Values], str]) -> CutText:
        """Render a conversation, cut at the places of its images.

        Args:
            values: the messages, the tools and the variables.
            render: renders them by the chat template.

        Raises:
            InvalidRequest: the template fails, or has no place for an image.
        """
        messages, tools, variables = values
        count = sum(1 for _ in images_in(messages))
        places: Values = with_places(messages), tools, variables
        disguise = Disguise(self._texts)
        is_plain = disguise.is_needed(places)
        text = render(disguise.put_on(places) if is_plain else places)
        pieces = text.split(self._words.place)
        if len(pieces) != count + 1:
            raise InvalidRequest.of(
                "prompt",
                f"the model's chat template wrote {len(pieces) - 1} places for {count} images: put images into "
                "messages of the user, or open the model with a chat_template that has a place for each",
            )
        return CutText(tuple(map(disguise.take_off, pieces)) if is_plain else tuple(pieces), is_plain)

    def joined(self, text: CutText) -> str:
        """Return a prompt with a placeholder for each image."""
        return self._words.place.join(text.pieces)

    def readable(self, ids: Sequence[int]) -> str:
        """Return the text of token ids for displays, with counts in place of image tokens: "[64 image tokens]".

        Tiles of an image count together, and so do images with nothing between them.
        """
        pieces: list[int | str] = []
        for is_image, group in groupby(ids, key=lambda token: token == self.placeholder):
            run = list(group)
            text = "" if is_image else self._tokenizer.decode(run)
            if not is_image and (text.strip() or not pieces):
                pieces.append(text)
            elif is_image and pieces and isinstance(pieces[-1], int):
                pieces[-1] += len(run)
            elif is_image:
                pieces.append(len(run))
        return "".join(f"[{quantity(each, 'image token')}]" if isinstance(each, int) else each for each in pieces)

    def cut_at_places(self, text: str, count: int) -> CutText:
        """Cut a raw prompt at its placeholders; without any, the images come first.

        Raises:
            InvalidRequest: the number of placeholders is another one than that of the images.
        """
        place = self._words.place
        places = text.count(place)
        if places not in (0, count):
            raise InvalidRequest.of(
                "prompt",
                f"the prompt has {places} times {place!r} for {count} images: write it once for each image, or "
                "never to have the images first",
            )
        whole = text if places else self._words.opening * count + text
        return CutText(tuple(whole.split(place)))

    def tokens(
        self, text: CutText, images: Sequence[tuple[ImageSource, str]], encode: Encode
    ) -> tuple[Sequence[int], tuple[Picture, ...]]:
        """Return the tokens of a prompt with its images, and the images with their places.

        Args:
            text: the prompt, with a place for each image.
            images: the images with their details.
            encode: returns the tokens of a text.

        Raises:
            InvalidRequest: a file is damaged.
        """
        processed = self._processed(images)
        texts = [each.processor.text(*identity.size) for each, identity in processed]
        tokenizer = self._tokenizer
        if text.is_plain:
            tokenizer, texts = self._private.tokenizer, list(map(self._private.secret, texts))
        whole = "".join(map("".join, zip(text.pieces, [*texts, ""], strict=True)))
        ids = encode(tokenizer, whole)
        return ids, self._pictures(ids, processed)

    def pictures(self, ids: Sequence[int], images: Sequence[tuple[ImageSource, str]]) -> tuple[Picture, ...]:
        """Return images with the places of their tokens in a prompt of `tokens`.

        Raises:
            InvalidRequest: a file is damaged, or the tokens are those of other images.
        """
        return self._pictures(ids, self._processed(images))

    def _processed(self, images: Sequence[tuple[ImageSource, str]]) -> list[tuple[ProcessedImage, ImageIdentity]]:
        """Return images with their identities."""
        low = self._processor.at_low_detail()
        sources = [ProcessedImage(image, low if detail == "low" else self._processor) for image, detail in images]
        return [(each, self.memory.identity(each.image, each.processor)) for each in sources]

    def _pictures(
        self, ids: Sequence[int], processed: Sequence[tuple[ProcessedImage, ImageIdentity]]
    ) -> tuple[Picture, ...]:
        counts = [tokens_of(each.processor, *identity.size) for each, identity in processed]
        places = np.flatnonzero(np.asarray(ids) == self.placeholder).astype(np.int32)
        if len(places) != sum(counts):
            raise InvalidRequest.of(
                "prompt", f"the tokenizer made {len(places)} image tokens of {sum(counts)}: the model's files differ"
            )
        if not processed:
            return ()
        split = np.split(places, np.cumsum(counts)[:-1])
        return tuple(
            Picture(identity.digest, where, each, grid_of(each.processor, *identity.size))
            for (each, identity), where in zip(processed, split, strict=True)
        )

    def around(self, picture: Picture) -> tuple[int, int]:
        """Return the number of tokens of an image's text before its first embedding, and after its last one."""
        source = picture.source
        assert isinstance(source, ProcessedImage), "images of prompts are cut by their processor"
        text = source.processor.text(*self.memory.identity(source.image, source.processor).size)
        before, after = text.partition(self._words.placeholder)[0], text.rpartition(self._words.placeholder)[2]
        return len(self._tokenizer.encode(before, False)), len(self._tokenizer.encode(after, False))
