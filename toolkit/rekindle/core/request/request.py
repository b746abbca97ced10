"""A request: one prompt with its sampling parameters, ready to be scheduled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.request import checks
from rekindle.core.request.constraint import Constrained
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.picture import Picture
from rekindle.core.request.repetition import RepetitionLimit
from rekindle.core.request.thoughts import ThoughtLimit, ThoughtWatch

if TYPE_CHECKING:  # parsers of the command line import this module, and do without numpy
    from rekindle.core.request.activations.changes import Changes

Pooling = Literal["cls", "last", "mean"]
"""Hidden states for an embedding: that of the prompt's first token (in both directions) or last one, or the mean."""
States = Pooling | Literal["tokens"]
"""Hidden states to return: pooled, or those of all tokens, for models that read whole texts in both directions."""
AnyPooling = Pooling | Literal["max", "mean_sqrt_len", "weightedmean"]
"""Poolings of embeddings. "max", "mean_sqrt_len" and "weightedmean" take all tokens of models with whole texts."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter on the device, in use by requests.

    Attributes:
        name: the name for callers.
        slot: its slot; the same in all lanes.
        digest: the digest of its numbers.
    """

    name: str
    slot: int
    digest: str


def namespace_of(salt: str, adapter: AdapterUse | None, changes: "Changes | None" = None) -> str:
    """Return the cache namespace of a salt, an adapter's numbers and changes of activations, unique to the three.

    A NUL in the salt is doubled, so that only the one before a digest stands alone.
    """
    parts = [salt.replace("\0", "\0\0")]
    parts += [] if adapter is None else [f"adapter {adapter.digest}"]
    parts += [] if changes is None else [f"changes {changes.digest}"]
    return "\0".join(parts)


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """A turn of the assistant, whose end depends on its parts.

    Attributes:
        tools: names of the tools that it may call.
        ends_after_call: whether it ends after its first call.
    """

    tools: tuple[str, ...] = ()
    ends_after_call: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Request:
    """One prompt with its sampling parameters, ready to be scheduled.

    Attributes:
        id: identity of the request in all messages; unique within an engine.
        prompt: token ids, at least one.
        params: validated parameters, with a seed.
        end_ids: token ids that end the request.
        capacity: most tokens, prompt and output together, that fit the context and the page pool.
        bad_words: token sequences banned from the output.
        namespace: cache namespace; requests share cached prefixes only within one namespace.
        hold: compute only the whole pages of the prompt, and hold them in the prefix cache until withdrawn.
        output_prefix: first tokens of the output, supplied instead of generated.
        pooling: the hidden states of the prompt to return; None for none.
        constrained: constraint on the output, or None.
        goes_on: True if the output continues a text; a space at its beginning is then part of it.
        adapter: its adapter, or None.
        changes: its changes of activations, or None.
        repetition: the limit of repetition in the output, or None.
        thoughts: the limit of thoughts in the output, or None.
        turn: the turn of the assistant in the output, if its parts matter to its end: its stop strings end the content
            alone. None for another output.
        synthetic: whether it is a load to measure: its pages enter no cache, and its figures no statistics.
        pictures: its images, in the order of their tokens.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    end_ids: frozenset[int]
    capacity: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    namespace: str = ""
    hold: bool = False
    output_prefix: tuple[int, ...] = ()
    pooling: States | None = None
    constrained: Constrained | None = None
    goes_on: bool = False
    adapter: AdapterUse | None = None
    changes: "Changes | None" = None
    repetition: RepetitionLimit | None = None
    thoughts: ThoughtLimit | None = None
    turn: AssistantTurn | None = None
    synthetic: bool = False
    pictures: tuple[Picture, ...] = ()

    @property
    def image_tokens(self) -> int:
        """Number of prompt tokens of images."""
        return sum(picture.tokens for picture in self.pictures)

    @property
    def initial_tokens(self) -> tuple[int, ...]:
        """All tokens known in advance: the prompt and `initial_output`."""
        return self.prompt + self.initial_output

    @property
    def initial_output(self) -> tuple[int, ...]:
        """Tokens of the output known in advance: supplied by the caller, or forced by a constraint or a budget."""
        if self.constrained is not None:
            return self.output_prefix + self.constrained.first.forced
        if self.thoughts is None or self.params.logprobs is not None:
            return self.output_prefix
        forced = ThoughtWatch(self.thoughts, self.output_prefix).forced
        return (self.output_prefix + forced)[: max(len(self.output_prefix), self.longest - len(self.prompt))]

    @property
    def may_force(self) -> bool:
        """True if a constraint or a budget of thoughts may force tokens of the output."""
        return self.constrained is not None or self.thoughts is not None

    @property
    def complete(self) -> bool:
        """True if the initial output ends the request, so that there is nothing to generate."""
        constraint = self.constrained
        return bool(self.output_prefix and self.output_prefix[-1] in self.end_ids) or bool(
            constraint and constraint.first.complete
        )

    @property
    def longest(self) -> int:
        """Largest possible number of tokens, prompt and output together."""
        most = self.params.max_tokens
        return self.capacity if most is None else min(len(self.prompt) + most, self.capacity)


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Validate a prompt of token ids, and return it as a tuple.

    Raises:
        InvalidRequest: the ids are no sequence of integers or empty, or an id is outside the vocabulary.
    """
    checked = checks.token_ids(name, ids)
    checks.in_vocabulary(name, checked, vocab_size)
    if not checked:
        raise InvalidRequest(f"{name} is empty; a prompt needs at least one token")
    return checked


def check_length(prompt: Sequence[int], capacity: int, output: bool = True) -> None:
    """Check the length of a prompt of token ids, with one token of output unless `output` is False.

    Raises:
        PromptTooLong: the prompt does not fit `capacity`.
    """
    check_count(len(prompt), capacity, output)


def check_count(tokens: int, capacity: int, output: bool = True, *, at_least: bool = False) -> None:
    """Check a number of tokens, as `check_length` does; `at_least` if the prompt may have more.

    Raises:
        PromptTooLong: the prompt does not fit `capacity`.
    """
    longest = capacity - 1 if output else capacity
    if tokens > longest:
        beside, least = " with one token of output" if output else "", "at least " if at_least else ""
        error = PromptTooLong.of(
            "prompt",
            f"the prompt has {least}{tokens} tokens; at most {longest} fit{beside}. "
            "Shorten it, or raise max_context or num_pages in open(), up to what the model was made for",
        )
        error.tokens, error.most = tokens, longest
        raise error
