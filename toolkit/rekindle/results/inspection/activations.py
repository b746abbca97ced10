"""Activations of a model over a prompt."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle import markup
from rekindle.core.errors import InvalidRequest
from rekindle.core.layer_parts import PARTS, Part
from rekindle.results.inspection.attention import ImageAttention, LookedImage, over_images
from rekindle.results.inspection.grids import Array, figure, grid, log_shades, name_of, numbers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Activations:
    """Activations of a model, from `session.look`, or from `capture=` of `generate`. All arrays are float32, of numpy.

    Attributes:
        token_ids: the tokens of the prompt; of a capture, those of the answer.
        tokens: the text of each token.
        layers: the layers with activations.
        embedding: (tokens, hidden), the input of the first layer.
        residual: (layers, tokens, hidden), what each layer passes on; None unless asked for.
        attention, mlp: (layers, tokens, hidden), what the attention (or a mixer with a state) and the MLP of each layer
            add to the residual stream; None unless asked for. Zeros for a layer without one.
        heads: the (layer, head) of each attention pattern.
        patterns: (heads, tokens, tokens), the weight of each earlier token (last axis) for each token.
        images: the images of the prompt, with the positions of their tokens.
        depth: the number of layers of the model.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    embedding: Array
    residual: Array | None
    attention: Array | None
    mlp: Array | None
    heads: tuple[tuple[int, int], ...]
    patterns: Array
    images: tuple[LookedImage, ...] = ()
    depth: int = 0

    @classmethod
    def of(
        cls,
        token_ids: tuple[int, ...],
        tokens: tuple[str, ...],
        layers: tuple[int, ...],
        parts: tuple[Part, ...],
        states: Array,
        heads: tuple[tuple[int, int], ...] = (),
        patterns: Array | None = None,
        images: tuple[LookedImage, ...] = (),
        depth: int = 0,
    ) -> "Activations":
        """Return activations from the arrays of a look.

        Args:
            states: (1 + layers * parts, tokens, hidden), the embeddings, and then the parts of each layer.
        """
        every = states[1:].reshape(len(layers), len(parts), len(token_ids), states.shape[-1])
        of_part = {part: every[:, place] for place, part in enumerate(parts)}
        return cls(
            token_ids=token_ids,
            tokens=tokens,
            layers=layers,
            embedding=states[0],
            residual=of_part.get("residual"),
            attention=of_part.get("attention"),
            mlp=of_part.get("mlp"),
            heads=heads,
            patterns=np.zeros((0, len(token_ids), len(token_ids)), np.float32) if patterns is None else patterns,
            images=images,
            depth=depth,
        )

    def over_images(self, token: int = -1, head: tuple[int, int] | None = None) -> ImageAttention:
        """Return the attention of a token to the parts of each image, for a cell to show over the images.

        Args:
            token: the position of the token, from the end if negative.
            head: the (layer, head) of the pattern, one of `heads`. The default is the mean over `heads`.

        Raises:
            InvalidRequest: the prompt has no images or no such token, or the look has no such pattern.
        """
        if not self.images or not self.heads:
            raise InvalidRequest(
                "a map of attention needs images and patterns: look(prompt, images=[...], heads=[(layer, head)])"
            )
        if head is not None and head not in self.heads:
            raise InvalidRequest.of("head", f"the look has the heads {self.heads}, got {head!r:.40}: name it in heads=")
        count = len(self.tokens)
        if not -count <= token < count:
            raise InvalidRequest.of("token", f"the prompt has {count} tokens, got token {token}")
        heads = self.heads if head is None else (head,)
        patterns = self.patterns if head is None else self.patterns[[self.heads.index(head)]]
        return over_images(patterns, heads, self.tokens, token % count, self.images)

    def at(self, layer: int, part: Part = "residual") -> Array:
        """Return the activations of one layer, (tokens, hidden).

        Args:
            layer: the index of the layer in the model, from the end if negative.
            part: one of `parts`.

        Raises:
            InvalidRequest: the part was not asked for, or the layer is not among `layers`.
        """
        array: Array | None = getattr(self, part) if part in PARTS else None
        index = layer + self.depth if layer < 0 else layer
        if array is None or index not in self.layers:
            raise InvalidRequest(
                f"there are activations of {', '.join(map(repr, self.parts))} in the layers {self.layers}, not of "
                f"{part!r:.40} in {layer!r:.40}: name them in session.look(..., layers=, parts=), or in capture="
            )
        result: Array = array[self.layers.index(index)]
        return result

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts with activations."""
        return tuple(part for part in PARTS if getattr(self, part) is not None)

    @property
    def summary(self) -> str:
        """The parts, layers and sizes in words."""
        hidden = self.embedding.shape[1]
        return f"{', '.join(self.parts)} of layers {_ranges(self.layers)}, {len(self.tokens):,} x {hidden:,}"

    def __repr__(self) -> str:
        return f"<rekindle.Activations: {', '.join(f'{name} {value}' for name, value in self._facts().items())}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        names = [name_of(token) for token in self.tokens]
        layers = [str(layer) for layer in reversed(self.layers)]  # the last one on top, as in the logit lens
        sections = []
        for part in self.parts:
            norms: Any = np.linalg.norm(getattr(self, part), axis=2)[::-1]
            title = (
                f"length of each vector of {part}, by layer and token: from {figure(float(norms.min()))} to "
                f"{figure(float(norms.max()))}, with logarithmic shades"
            )
            folded = numbers(norms, layers, names, f"lengths of {part}")
            sections.append(_section(title, grid(norms, log_shades(norms), layers, names, title), folded))
        for (layer, head), pattern in zip(self.heads, self.patterns, strict=True):
            title = (
                f"attention of head {head} in layer {layer}: each row is a token, and its columns the tokens it sees"
            )
            folded = numbers(pattern, names, names, f"weights of head {head} in layer {layer}")
            sections.append(_section(title, grid(pattern, pattern, names, names, title), folded))
        if self.images and self.heads:
            sections.append(self.over_images()._repr_mimebundle_()["text/html"])
        return markup.bundle(repr(self), markup.card("Activations", "", markup.facts(self._facts()), *sections))

    def _facts(self) -> dict[str, str]:
        hidden = self.embedding.shape[1]
        facts = {"tokens": f"{len(self.tokens):,}", "layers": _ranges(self.layers), "parts": ", ".join(self.parts)}
        facts |= {"images": f"{len(self.images):,}"} if self.images else {}
        facts |= {"hidden": f"{hidden:,}"} | ({"heads": f"{len(self.heads):,}"} if self.heads else {})
        return {name: value for name, value in facts.items() if value}


def _section(title: str, picture: str, folded: str) -> str:
    """Return a picture below its title, with its numbers."""
    return f'<div style="margin:0.8em 0 0 0">{markup.note(title)}{picture}{folded}</div>'


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers as text, whole ranges by their ends."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
