"""Looking inside the model of a session: activations, attention patterns and the logit lens."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import jax
import numpy as np

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.thread import EngineThread
from rekindle.client.engine_client import EngineClient
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread, unless, until_closed
from rekindle.core.device.packing import pack_changes
from rekindle.core.device.programs.functions import LENS, Key
from rekindle.core.errors import InvalidRequest, ModelTooLarge
from rekindle.core.layer_parts import EMBEDDING, PARTS, Part
from rekindle.core.messages import Inspect, Prompt
from rekindle.core.models.inspection.look import LENS_ROWS, LENS_TOKENS, Look, LookInputs
from rekindle.core.request.changes import Changes, changes_of, layer_index, part_of
from rekindle.core.request.checks import integer, preview
from rekindle.core.request.request import check_length
from rekindle.core.request.steering import Patch, Steering
from rekindle.core.words import size_text
from rekindle.results.inspection.activations import Activations
from rekindle.results.inspection.lens import LogitLens

SHORTEST = 64
"""The smallest room for tokens; larger ones grow fourfold, since each needs a program."""
MOST_BYTES = 4 << 30
"""The most bytes of the activations of one look."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Checked activations to look at.

    Attributes:
        layers: the layers.
        parts: the parts of each layer.
        heads: the (layer, head) of each attention pattern.
    """

    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    heads: tuple[tuple[int, int], ...]

    @property
    def states(self) -> int:
        """The number of activations, with the embeddings."""
        return 1 + len(self.layers) * len(self.parts)

    def places(self, layers: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the place of the activations of each layer and part, as in `LookInputs`."""
        result = np.full((layers + 1, len(PARTS)), np.iinfo(np.int32).max, np.int32)
        result[EMBEDDING + 1, PARTS.index("residual")] = 0
        for place, layer in enumerate(self.layers):
            for further, part in enumerate(self.parts):
                result[layer + 1, PARTS.index(part)] = 1 + place * len(self.parts) + further
        return result


class Inspections:
    """Inspections of the model of one session, each awaitable or blocking."""

    def __init__(self, engine: EngineThread, loaded_engine: LoadedEngine, client: EngineClient, requests: Requests):
        self._engine, self._loaded_engine, self._client, self._requests = engine, loaded_engine, client, requests

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self._loaded_engine.model.layers)

    @property
    def page_size(self) -> int:
        """The number of tokens in a page of the prefix cache."""
        size: int = self._loaded_engine.limits.pool.page_size
        return size

    def look(
        self,
        prompt: Any,
        token_ids: Any,
        layers: Any,
        parts: Any,
        heads: Any,
        steer: Sequence[Steering],
        patch: Sequence[Patch],
    ) -> Waits[Activations]:
        """See `Session.look`."""
        model = self._loaded_engine.model
        self._check_served()
        choice = self._choice(layers, parts, heads)
        requested = self._requests.prompt(prompt, {} if token_ids is None else {"token_ids": token_ids})
        ids = yield from in_a_thread(lambda: self._ids(requested), "prompt")
        sizes = len(model.layers), model.hidden_size
        shape, changes = self._shape(len(ids), choice), changes_of(steer, patch, len(ids), sizes)
        inputs = _inputs(ids, choice, shape, changes, sizes)
        states, patterns = yield from self._run(shape, inputs)
        arrays = np.asarray(states)[: choice.states, : len(ids)]
        every = arrays[1:].reshape(len(choice.layers), len(choice.parts), len(ids), -1)
        of_part = {part: every[:, place] for place, part in enumerate(choice.parts)}
        return Activations(
            token_ids=ids,
            tokens=tuple(map(self.text, ids)),
            layers=choice.layers,
            embedding=arrays[0],
            residual=of_part.get("residual"),
            attention=of_part.get("attention"),
            mlp=of_part.get("mlp"),
            heads=choice.heads,
            patterns=np.asarray(patterns)[: len(choice.heads), : len(ids), : len(ids)],
        )

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
        return LogitLens(activations.tokens, activations.layers, token_ids, texts, logprobs)

    def _check_served(self) -> None:
        """Raise InvalidRequest for a session whose model cannot be looked into."""
        loaded_engine = self._loaded_engine
        if loaded_engine.replicas is not None or loaded_engine.followers is not None:
            raise InvalidRequest("look is for sessions in one process, and this one has devices of others")
        if loaded_engine.model.streams is not None:
            raise InvalidRequest("look is for models with one residual stream, and this one has several")
        self._requests.check_engine()

    def _choice(self, layers: Any, parts: Any, heads: Any) -> Choice:
        count = len(self._loaded_engine.model.layers)
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
        return Choice(numbers, checked, self._heads(heads))

    def _heads(self, heads: Any) -> tuple[tuple[int, int], ...]:
        model = self._loaded_engine.model
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
        if checked and any(lane.place is not None and lane.place.tensor > 1 for lane in self._loaded_engine.lanes):
            raise InvalidRequest.of("heads", "attention patterns are for models on one device: leave out heads")
        return tuple(checked)

    def _shape(self, tokens: int, choice: Choice) -> Look:
        """Return the smallest shape with a program for this look."""
        capacity, room = self._loaded_engine.preparer.capacity, SHORTEST
        while room < tokens:
            room *= 4
        room = max(tokens, min(room, capacity))
        shape = Look(room, _power_of_two(choice.states), _power_of_two(len(choice.heads)) if choice.heads else 0)
        size = 4 * shape.tokens * (shape.states * self._loaded_engine.model.hidden_size + shape.patterns * shape.tokens)
        if size > MOST_BYTES:
            raise InvalidRequest(
                f"the activations take {size_text(size)}, more than {size_text(MOST_BYTES)}: name fewer layers, parts "
                "or heads, or look at a shorter prompt"
            )
        return shape

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        preparer = self._loaded_engine.preparer
        ids = preparer.token_ids(prompt)
        check_length(ids, preparer.capacity, output=False)
        return ids

    def _run(self, key: Key, inputs: Any) -> Waits[Any]:
        """Run a program over the weights on the first lane, between ticks."""
        _, answers = self._client.ask(lambda ticket: Inspect(ticket, key, inputs), self._engine.post)
        yield from unless(until_closed(answers), lambda: self._engine.overdue)
        if not answers.items:
            assert self._engine.error is not None, "only an ended engine closes a feed without an answer"
            raise self._engine.error.with_traceback(None)
        outputs = answers.items[0].outputs
        if outputs is None:
            raise InvalidRequest("the session has no weights at the moment: wake it, or update its weights, first")
        if isinstance(outputs, Exception):
            raise ModelTooLarge("the device has no room for these activations: name fewer layers") from outputs
        return outputs

    def text(self, token: int) -> str:
        """Return the text of a token; its id as text without a tokenizer."""
        tokenizer = self._loaded_engine.tokenizer
        return str(token) if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)


def _inputs(
    ids: Sequence[int], choice: Choice, shape: Look, changes: Changes | None, sizes: tuple[int, int]
) -> LookInputs:
    """Return the inputs of a look as arrays of numpy; `sizes` as in `changes_of`."""
    layers, hidden = sizes
    heads = np.full((shape.patterns, 2), layers, np.int32)
    heads[: len(choice.heads)] = np.array(choice.heads, np.int32).reshape(-1, 2)
    arrays: Any = (
        np.pad(np.array(ids, np.int32), (0, shape.tokens - len(ids))),
        np.int32(len(ids)),
        choice.places(layers),
        heads,
        jax.tree.map(lambda array: array[None], pack_changes(changes, hidden)),
    )
    return LookInputs(*arrays)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
