"""Looking inside the model of a session: activations, attention patterns and the logit lens."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from rekindle.assembly.looking import Selection
from rekindle.client.calls.options import PromptOptions
from rekindle.client.engine_client import OpenEngine
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread, unless
from rekindle.core.device.programs.functions import LENS, Key, embed_program
from rekindle.core.errors import InvalidRequest, ModelTooLarge
from rekindle.core.layer_parts import EMBEDDING
from rekindle.core.messages import Inspect, PicturedTokens, Prompt
from rekindle.core.models.inspection.inputs import LENS_ROWS, LENS_TOKENS
from rekindle.core.models.vision.patches import Patches
from rekindle.core.request.activations.changes import changes_of, layer_index, part_of
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.checks import integer, preview
from rekindle.core.request.picture import Picture, coordinates_of
from rekindle.core.request.request import check_length
from rekindle.core.scheduler.gallery import segment_of
from rekindle.results.inspection.activations import Activations
from rekindle.results.inspection.attention import LookedImage
from rekindle.results.inspection.lens import LogitLens

LONGEST = 360
"""Pixels of the longer side of an image in a map of attention."""


class Inspections:
    """Inspections of the model of one session, each awaitable or blocking."""

    def __init__(self, engine: OpenEngine, requests: Requests):
        self._engine, self._requests = engine, requests

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self._engine.facts.model.layers)

    @property
    def page_size(self) -> int:
        """The number of tokens in a page of the prefix cache."""
        size: int = self._engine.facts.limits.pool.page_size
        return size

    def look(
        self,
        prompt: Any,
        options: PromptOptions[Any],
        layers: Any,
        parts: Any,
        heads: Any,
        steer: Sequence[Steering],
        patch: Sequence[Patch],
    ) -> Waits[Activations]:
        """See `Session.look`.

        Args:
            options: `token_ids` or `images` of the call.
        """
        self._check_served()
        choice = self._choice(layers, parts, heads)
        return (yield from self.look_at(self._requests.prompt(prompt, options), choice, steer, patch))

    def look_at(
        self,
        prompt: Prompt,
        choice: Selection,
        steer: Sequence[Steering] = (),
        patch: Sequence[Patch] = (),
        output: tuple[int, ...] = (),
    ) -> Waits[Activations]:
        """Look at a checked prompt, and at an output behind it."""
        model = self._engine.facts.model
        tokens = yield from in_a_thread(lambda: self._read(prompt, output), "prompt")
        ids, pictures = tokens.ids, tokens.pictures
        looks, sizes = self._engine.facts.looks, (len(model.layers), model.hidden_size)
        remedy = "name fewer layers, parts or heads, or look at a shorter prompt"
        shape = looks.shape(len(ids), choice, remedy, pictures=bool(pictures))
        changes = changes_of(steer, patch, len(ids), sizes)
        embedded: dict[int, Any] = {}
        images = []
        for picture in pictures:
            embeddings, image = yield from self._embed(picture)
            embedded |= dict(zip(picture.positions.tolist(), embeddings, strict=True))
            images.append(image)
        inputs = looks.inputs(ids, choice, shape, changes, embedded, coordinates_of(pictures, 0, shape.tokens))
        states, patterns = yield from self._run(shape, inputs)
        return Activations.of(
            ids,
            tuple(map(self.text, ids)),
            choice.layers,
            choice.parts,
            np.asarray(states)[: choice.states, : len(ids)],
            choice.heads,
            np.asarray(patterns)[: len(choice.heads), : len(ids), : len(ids)],
            tuple(images),
            len(model.layers),
        )

    def _embed(self, picture: Picture) -> Waits[tuple[Any, LookedImage]]:
        """Return the embeddings of an image, (tokens, hidden), apart from those in use by requests, and its layout."""
        patches, image = yield from in_a_thread(lambda: _looked_image(picture), "prompt")
        rows, padding = np.arange(picture.tokens, dtype=np.int32), self._engine.facts.limits.picture_rows
        parts = []
        for place in range(len(patches.values)):
            part = segment_of(patches, place, rows, padding)
            key = embed_program(patches.valid.shape[1])
            # The buffer of requests stays as it is: the program returns another one.
            buffer = yield from self._run(key, (part.rows, part.patches), np.asarray)
            parts.append(buffer[part.rows[part.rows < padding]])
        return np.concatenate(parts), image

    def logit_lens(self, activations: Activations, top: int) -> Waits[LogitLens]:
        """See `Session.logit_lens`."""
        self._check_served()
        if not isinstance(activations, Activations):
            got = type(activations).__name__
            raise InvalidRequest(f"the logit lens takes the result of `await session.look(prompt)`, got {got}")
        count, states = integer("top", top, 1, LENS_TOKENS), activations.residual
        if states is None:
            raise InvalidRequest('the logit lens reads the residual stream: look with parts that have "residual"')
        rows, outputs = states.reshape(-1, states.shape[-1]), []
        for first in range(0, len(rows), LENS_ROWS):
            some = np.zeros((LENS_ROWS, rows.shape[1]), np.float32)
            some[: len(rows) - first] = rows[first : first + LENS_ROWS]
            outputs.append((yield from self._run(LENS, some)))
        shape = (*states.shape[:2], count)
        token_ids, logprobs = (
            np.concatenate([np.asarray(output[side]) for output in outputs])[: len(rows), :count].reshape(shape)
            for side in (0, 1)
        )
        texts = tuple(tuple(tuple(map(self.text, ids)) for ids in layer) for layer in token_ids.tolist())
        of_images = frozenset(position for image in activations.images for position in image.positions.tolist())
        return LogitLens(activations.tokens, activations.layers, token_ids, texts, logprobs, of_images)

    def _check_served(self) -> None:
        """Raise InvalidRequest for a session whose model cannot be looked into."""
        self._engine.facts.check_looks("look")
        self._requests.engine.check()

    def _choice(self, layers: Any, parts: Any, heads: Any) -> Selection:
        count = len(self._engine.facts.model.layers)
        choices = range(count) if layers is None else layers if isinstance(layers, Sequence | range) else [layers]
        if isinstance(choices, str):
            choices = [choices]
        numbers = tuple(dict.fromkeys(layer_index("layers", layer, count) for layer in choices))
        if EMBEDDING in numbers:
            raise InvalidRequest.of("layers", 'layers are indices; the embeddings come with every look, as "embedding"')
        every = (parts,) if isinstance(parts, str) else tuple(parts)
        checked = tuple(dict.fromkeys(part_of("parts", part) for part in every))
        if not numbers or not checked:
            raise InvalidRequest("layers and parts must each name at least one")
        return Selection(numbers, checked, self._heads(heads))

    def _heads(self, heads: Any) -> tuple[tuple[int, int], ...]:
        model = self._engine.facts.model
        checked = []
        for pair in heads:
            try:
                layer, head = map(index, pair)
            except (TypeError, ValueError):
                raise InvalidRequest.of("heads", f"heads must be (layer, head) pairs, got {preview(pair)}") from None
            layer = layer_index("heads", layer, len(model.layers))
            attention = model.layers[layer].attention
            if attention is None or not 0 <= head < attention.heads:
                has = "no attention" if attention is None else f"the heads 0 to {attention.heads - 1}"
                raise InvalidRequest.of("heads", f"layer {layer} has {has}, got head {head}")
            checked.append((layer, head))
        if checked and any(lane.place is not None and lane.place.tensor > 1 for lane in self._engine.facts.lanes):
            raise InvalidRequest.of("heads", "attention patterns are for models on one device: leave out heads")
        return tuple(checked)

    def _read(self, prompt: Prompt, output: tuple[int, ...]) -> PicturedTokens:
        """Return the tokens of a prompt with an output behind it."""
        prompts = self._engine.facts.preparer.prompts
        tokens = prompts.read(prompt)
        ids = tokens.ids + output
        check_length(ids, prompts.capacity, output=False)
        return PicturedTokens(ids, tokens.pictures)

    def _run(self, key: Key, inputs: Any, take: Callable[[Any], Any] | None = None) -> Waits[Any]:
        """Run a program over the weights on the first lane, between ticks; `take` is that of `Inspect`."""
        _, answers = self._engine.ask(lambda ticket: Inspect(ticket, key, inputs, take))
        yield from unless(self._requests.wait_for_look(answers), lambda: self._engine.thread.overdue)
        if not answers.items:
            assert self._engine.thread.error is not None, "only an ended engine closes a feed without an answer"
            raise self._engine.thread.error.with_traceback(None)
        outputs = answers.items[0].outputs
        if outputs is None:
            raise InvalidRequest("the session has no weights at the moment: wake it, or update its weights, first")
        if isinstance(outputs, Exception):
            raise ModelTooLarge("the device has no room for these activations: name fewer layers") from outputs
        return outputs

    def text(self, token: int) -> str:
        """Return the text of a token; its id as text without a tokenizer."""
        tokenizer = self._engine.facts.tokenizer
        return str(token) if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)


def _looked_image(picture: Picture) -> tuple[Patches, LookedImage]:
    """Return the patches of an image, and its layout."""
    from rekindle.formats.images.sources import decoded
    from rekindle.formats.images.writing import thumbnails

    source: Any = picture.source
    ((url, description),) = thumbnails([source.image], LONGEST)
    with decoded([source.image]) as (pixels,):
        size = pixels.shape[:2]
    return picture.patches(), LookedImage(picture.positions, source.grids(size), url, description)
