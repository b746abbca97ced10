"""Prompts with images and videos: the text of each in its place, and the positions of its tokens."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.picture import Picture
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.words import quantity
from rekindle.formats.images.literals import Disguise, PrivateTokens
from rekindle.formats.images.memory import ImageIdentity, ImageMemory
from rekindle.formats.images.parts import images_in, with_places
from rekindle.formats.images.processed import Processed, ProcessedFrames, ProcessedImage, VideoRules
from rekindle.formats.images.processors.families import sized, videos_of
from rekindle.formats.images.processors.processor import ImageProcessor
from rekindle.formats.images.room import Ended, never
from rekindle.formats.images.sizing import Sizing
from rekindle.formats.images.sources import ImageSource
from rekindle.formats.images.videos import Video

Encode = Callable[[Tokenizer, str], Sequence[int]]
"""Returns the tokens of a whole text; checks its length."""
Values = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, Mapping[str, Any]]
"""Messages, tools and variables of a chat template."""
Unit = tuple[Processed, ImageIdentity]
"""The pixels of adjacent embeddings, with their identity."""


@dataclass(frozen=True, slots=True)
class CutText:
    """The text of a prompt, cut at the places of its images and videos.

    Attributes:
        pieces: the texts before, between and after the images.
        places: the texts of the places.
        private: the pieces for the private tokenizer, where texts of image tokens are plain text: those written by the
            template have their secret texts. None for pieces whose texts of image tokens are all the template's.
    """

    pieces: tuple[str, ...]
    places: tuple[str, ...]
    private: tuple[str, ...] | None = None


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
        self._videos = videos_of(processor)
        places = [self._words.place] if self._videos is None else [self._words.place, self._videos.video]
        self._place = re.compile("|".join(map(re.escape, places)))
        ids = (tokenizer.backend.token_to_id(text) for text in (self._words.placeholder, *places[1:]))
        self._placeholders = frozenset(token for token in ids if token is not None)
        added = {entry.content for entry in tokenizer.backend.get_added_tokens_decoder().values()}
        self._texts = [text for text in self._words.texts if text in added]

    @cached_property
    def _private(self) -> PrivateTokens:
        return PrivateTokens(self._tokenizer, self._texts)

    def has_tokens(self, ids: Iterable[int]) -> bool:
        """Return True for tokens with one for an embedding of an image or a video."""
        return not self._placeholders.isdisjoint(ids)

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
        expected = [self._place_of(image) for image, _ in images_in(messages)]
        places: Values = with_places(messages), tools, variables
        disguise = Disguise(self._texts)
        is_plain = disguise.is_needed(places)
        text = render(disguise.put_on(places) if is_plain else places)
        marks, pieces = self._place.findall(text), self._place.split(text)
        if marks != expected:
            raise InvalidRequest.of(
                "prompt",
                f"the model's chat template wrote {len(marks)} places for {len(expected)} images: put images into "
                "messages of the user, or open the model with a chat_template that has a place for each",
            )
        if not is_plain:
            return CutText(tuple(pieces), tuple(marks))
        private = map(self._private.secret, pieces)
        take_off = disguise.take_off
        return CutText(tuple(map(take_off, pieces)), tuple(marks), tuple(map(take_off, private)))

    def _place_of(self, image: ImageSource | Video) -> str:
        """Return the text of the place of an image or a video.

        Raises:
            InvalidRequest: the model takes no videos.
        """
        if not isinstance(image, Video):
            return self._words.place
        if self._videos is None:
            raise InvalidRequest.of(
                "prompt",
                "the model takes no videos: only Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5 do so here. Give single "
                "frames as images, or open one of these",
            )
        return self._videos.video

    def joined(self, text: CutText) -> str:
        """Return a prompt with a placeholder for each image."""
        return _joined(text.pieces, text.places)

    def readable(self, ids: Sequence[int]) -> str:
        """Return the text of token ids for displays, with counts in place of image tokens: "[64 image tokens]".

        Tiles of an image count together, and so do images with nothing between them.
        """
        pieces: list[int | str] = []
        for is_image, group in groupby(ids, key=self._placeholders.__contains__):
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
        return CutText(tuple(whole.split(place)), (place,) * count)

    def tokens(
        self,
        text: CutText,
        images: Sequence[tuple[ImageSource | Video, str | Sizing]],
        encode: Encode,
        ended: Ended = never,
    ) -> tuple[Sequence[int], tuple[Picture, ...]]:
        """Return the tokens of a prompt with its images, and the images with their places.

        Args:
            text: the prompt, with a place for each image.
            images: the images with their details.
            encode: returns the tokens of a text.
            ended: asked before and while images are decoded.

        Raises:
            InvalidRequest: a file is damaged.
            RequestCancelled: nobody waits for the prompt any more.
        """
        ids = self.ids(text, images, encode)  # before anything is decoded: the prompt may be too long
        return ids, self._pictures(ids, self._processed(images, ended))

    def ids(
        self, text: CutText, images: Sequence[tuple[ImageSource | Video, str | Sizing]], encode: Encode
    ) -> Sequence[int]:
        """Return the tokens of a prompt as `tokens` does, by the sizes of its images alone."""
        texts = ["".join(each.text(each.image.upright) for each in group) for group in self._groups(images)]
        if text.private is None:
            return encode(self._tokenizer, _joined(text.pieces, texts))
        return encode(self._private.tokenizer, _joined(text.private, list(map(self._private.secret, texts))))

    def pictures(
        self, ids: Sequence[int], images: Sequence[tuple[ImageSource | Video, str | Sizing]], ended: Ended = never
    ) -> tuple[Picture, ...]:
        """Return images with the places of their tokens in a prompt of `tokens`.

        Raises:
            InvalidRequest: a file is damaged, or the tokens are those of other images.
            RequestCancelled: see `tokens`.
        """
        return self._pictures(ids, self._processed(images, ended))

    def _processed(self, images: Sequence[tuple[ImageSource | Video, str | Sizing]], ended: Ended) -> list[list[Unit]]:
        """Return the units of each image with their identities."""
        return [[(each, each.identity(self.memory, ended)) for each in group] for group in self._groups(images)]

    def _groups(self, images: Sequence[tuple[ImageSource | Video, str | Sizing]]) -> list[Sequence[Processed]]:
        """Return the units of each image: one of an image, one for two frames of a video."""
        low = self._processor.at_low_detail()
        groups: list[Sequence[Processed]] = []
        for image, detail in images:
            if isinstance(image, Video):
                assert self._videos is not None, "rendering refuses videos for other models"
                groups.append(_pairs(image, self._videos))
            else:
                rules = sized(self._processor, detail) if isinstance(detail, Sizing) else self._processor
                groups.append([ProcessedImage(image, low if detail == "low" else rules)])
        return groups

    def _pictures(self, ids: Sequence[int], processed: Sequence[Sequence[Unit]]) -> tuple[Picture, ...]:
        units = [unit for group in processed for unit in group]
        counts = [sum(grid.size for grid in each.grids(identity.size)) for each, identity in units]
        places = np.flatnonzero(np.isin(np.asarray(ids, np.int64), list(self._placeholders))).astype(np.int32)
        if len(places) != sum(counts):
            raise InvalidRequest.of(
                "prompt", f"the tokenizer made {len(places)} image tokens of {sum(counts)}: the model's files differ"
            )
        if not units:
            return ()
        split = np.split(places, np.cumsum(counts)[:-1])
        return tuple(
            Picture(identity.digest, where, each, each.grid(identity.size), *each.extent(identity.size))
            for (each, identity), where in zip(units, split, strict=True)
        )

    def around(self, picture: Picture) -> tuple[int, int]:
        """Return the number of tokens of an image's text before its first embedding, and after its last one."""
        source = picture.source
        assert isinstance(source, ProcessedImage | ProcessedFrames), "images of prompts are cut by their processor"
        text = source.text(source.identity(self.memory).size)
        placeholder = self._words.placeholder if isinstance(source, ProcessedImage) else source.processor.video
        before, after = text.partition(placeholder)[0], text.rpartition(placeholder)[2]
        return len(self._tokenizer.encode(before, False)), len(self._tokenizer.encode(after, False))


def _joined(pieces: Sequence[str], texts: Sequence[str]) -> str:
    """Return pieces with a text between each two."""
    return "".join(map("".join, zip(pieces, [*texts, ""], strict=True)))


def _pairs(video: Video, rules: VideoRules) -> list[ProcessedFrames]:
    """Return each two successive frames of a video; the last frame counts twice in an odd number."""
    frames = [*zip(video.frames, video.times, strict=True)]
    frames += frames[-1:] * (len(frames) % 2)
    count, positions = len(frames) // 2, rules.positions(video.times)
    places = [None] * count if positions is None else [(each, at == count - 1) for at, each in enumerate(positions)]
    return [
        ProcessedFrames(first, second, (start + end) / 2, len(video.frames), rules, place)
        for (first, start), (second, end), place in zip(frames[::2], frames[1::2], places, strict=True)
    ]
