"""Task of a map: a generation for each item."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.client.batches.run import Outcome
from rekindle.client.calls.options import PROMPT_DEFAULTS, GenerateOptions, PromptOptions
from rekindle.client.calls.prompts import one_chat
from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.params import SamplingParams
from rekindle.mapping.entries import GenerationEntry
from rekindle.mapping.results import MapResults
from rekindle.results.answer_table import PromptLabel
from rekindle.results.generation import Generation
from rekindle.tools.tool import schemas_of


@dataclass(frozen=True, slots=True)
class GenerationWork:
    """Request for the generation of one item."""

    handle: Handle

    def settle(self) -> bool:
        """Return True if the request has ended."""
        return self.handle.done

    @property
    def outcome(self) -> Outcome:
        """Outcome of the ended request."""
        outcome = self.handle.record.outcome
        assert outcome is not None, "a request that has ended has an outcome"
        return outcome

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return self.handle.record.generated

    @property
    def weights(self) -> Sequence[int]:
        """Numbers of the weights that generated the answer."""
        outcome = self.outcome
        return [version for version, _ in outcome.weights_version] if isinstance(outcome, Generation) else ()

    def cancel(self) -> None:
        """Cancel the request."""
        self.handle.cancel()


@dataclass(frozen=True, slots=True)
class GenerationTask:
    """Generation of an answer to each item.

    Attributes:
        requests: the requests of the session.
        options: the options of each request.
        params: the sampling parameters of each request.
    """

    requests: Requests
    options: GenerateOptions[Any]
    params: SamplingParams
    at_once: None = None

    @classmethod
    def of(cls, requests: Requests, options: GenerateOptions[Any]) -> "GenerationTask":
        """Check the options of a map; raises as `Requests.params` does."""
        params = requests.params(options)
        if params.capture is not None:
            raise InvalidRequest.of(
                "capture",
                "map keeps no activations, since its results may be many: pass lists of prompts to generate",
            )
        one_chat([{"role": "user", "content": "any"}], options)  # raises errors shared by all conversations early
        return cls(requests, options, params)

    @property
    def entry(self) -> GenerationEntry:
        """Entry of a generation in a line of the file."""
        return GenerationEntry(self.params.constraint)

    @property
    def shaping(self) -> dict[str, Any]:
        """Options of the call that apply to all its prompts, without defaults."""
        values: Mapping[str, Any] = self.options
        values_in_use = {name: values[name] for name in PROMPT_DEFAULTS if values.get(name) is not None}
        shaping = {
            name: value
            for name, value in values_in_use.items()
            if name != "token_ids" and value != PROMPT_DEFAULTS[name]
        }
        return shaping | ({"tools": schemas_of(values_in_use["tools"])} if "tools" in values_in_use else {})

    def check(self) -> None:
        """Run the slow checks of the parameters."""
        self.requests.engine.facts.preparer.check(self.params)

    def prompt(self, value: Any) -> Prompt:
        """Return the prompt of an item, or of its filled template.

        Raises:
            InvalidRequest: the value is no prompt.
        """
        options: Mapping[str, Any] = self.options
        own: Any = {name: each for name, each in options.items() if name in PromptOptions.__annotations__}
        if own.pop("token_ids", None) is not None:
            return self.requests.prompt(None, own | {"token_ids": value})
        if isinstance(value, Mapping):
            raise InvalidRequest("the item is a mapping, which needs a template: pass template=")
        if value is None:
            raise InvalidRequest("the item is None; give a text, a list of messages, or a mapping and a template")
        return self.requests.prompt(value, own)

    def submit(self, prompt: Prompt, ended: Callable[[], None]) -> GenerationWork:
        """Submit the request of a prompt; it waits on the client's side while the queue is full.

        Args:
            ended: called from any thread when the request ends.
        """
        self.requests.note_plain_texts([prompt], self.params)
        handle = self.requests.submit(prompt, self.params, self.options, wait=True)
        handle.record.pieces.when_closed(ended)
        return GenerationWork(handle)

    def results(
        self, outcomes: Sequence[Any], prompts: Sequence[PromptLabel], items: Sequence[Any]
    ) -> MapResults[Generation]:
        """Return the results of the map."""
        return MapResults(outcomes, prompts, items)
