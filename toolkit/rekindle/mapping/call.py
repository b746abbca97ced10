"""Call of `session.map`: its checked options, and its operations on one item."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rekindle.client.batches.run import Errors
from rekindle.client.calls.options import GenerateOptions
from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.accepted import MOST_TOKENS
from rekindle.core.request.checks import integer, preview
from rekindle.core.request.params import SamplingParams
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.mapping.answer_file import AnswerFile
from rekindle.mapping.deciding import DecisionTask
from rekindle.mapping.entries import Entry
from rekindle.mapping.generating import GenerationTask
from rekindle.mapping.in_flight import EndedItem, ItemRequests
from rekindle.mapping.items import Item, read
from rekindle.mapping.shaping import Shaping, shaping_options
from rekindle.mapping.template import RowTemplate
from rekindle.results.answer_table import PromptLabel

WINDOWS = 2
"""Default window, as a multiple of the engine's slots, so that a request waits for each slot that becomes free."""


def default_window(limits: EngineLimits) -> int:
    """Return the default window of a session."""
    return WINDOWS * limits.groups * limits.max_running


class Task(Protocol):
    """Work of a map on each item: a generation, or decisions."""

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters that shape all answers."""

    @property
    def shaping(self) -> Mapping[str, Any]:
        """Further options that shape all answers, by name."""

    @property
    def at_once(self) -> int | None:
        """Maximum number of items to enter before other tasks of the caller's loop run; None for any number."""

    @property
    def entry(self) -> Entry:
        """Entry of a result in the lines of the file."""

    def check(self) -> None:
        """Run slow checks; called in a thread."""

    def prompt(self, value: Any) -> Prompt:
        """Return the prompt of an item, or of its filled template; raises InvalidRequest for a bad one."""

    def submit(self, prompt: Prompt, ended: Callable[[], None]) -> ItemRequests:
        """Submit the requests of a prompt; `ended` is called from any thread as each of them ends."""

    def results(self, outcomes: Sequence[Any], prompts: Sequence[PromptLabel], items: Sequence[Any]) -> Any:
        """Return the results of the map."""


@dataclass(frozen=True, slots=True)
class MapCall:
    """Checked options of a map, and the operations on one item.

    Attributes:
        requests: the requests of the session.
        task: the work on each item.
        template: the template for the items; None for items used as prompts.
        file: the file of answers; None without a file.
        errors: "raise" raises the first error; "return" returns each error in the place of its item.
        window: the maximum number of items in flight plus answers not yet taken by the caller.
    """

    requests: Requests
    task: Task
    template: RowTemplate | None
    file: AnswerFile | None
    errors: Errors
    window: int

    @classmethod
    def of(
        cls,
        requests: Requests,
        options: GenerateOptions[Any],
        questions: Any,
        template: Any,
        path: str | os.PathLike[str] | None,
        errors: Any,
        window: int | None,
    ) -> "MapCall":
        """Check a call, without reading items or the file.

        Raises:
            InvalidRequest: an option is invalid.
            SessionError: the session is closed or its engine failed.
        """
        task: Task = (
            GenerationTask.of(requests, options) if questions is None else DecisionTask.of(requests, questions, options)
        )
        if errors not in ("raise", "return"):
            raise InvalidRequest(f'errors must be "raise" or "return", got {errors!r:.80}')
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"path must be a str or a path, got {preview(path)}")
        if template is not None and options.get("token_ids") is not None:
            raise InvalidRequest("template applies to items; leave it out for token_ids")
        most = (
            default_window(requests.engine.facts.limits)
            if window is None
            else integer("window", window, 1, MOST_TOKENS)
        )
        requests.engine.check()
        file = None
        if path is not None:
            keywords = shaping_options(requests.engine.facts.source, task.params, task.shaping)
            file = AnswerFile(path, keywords, task.entry)
        return cls(requests, task, None if template is None else RowTemplate.of(template), file, errors, most)

    @property
    def shaping(self) -> Shaping:
        """Content of the session with an effect on answers."""
        return Shaping(self.requests.engine)

    def read(self, items: Iterable[Any]) -> Iterator[Item]:
        """Yield items on demand; see `rekindle.mapping.items.read`."""
        return read(items, self.template, self.task.prompt)

    def open(self) -> None:
        """Run the slow checks of the options, and read the file of answers. Called in a thread."""
        self.task.check()
        if self.file is not None:
            self.file.open(self.shaping.content(self.task.params.adapter))

    def submit(self, prompt: Prompt, ended: Callable[[], None]) -> ItemRequests:
        """Submit the requests of a prompt; see `Task.submit`.

        Raises:
            InvalidRequest: another adapter has the name since the file was opened.
        """
        if self.file is not None:
            self.file.check_adapter(self.shaping.adapter(self.task.params.adapter))
        return self.task.submit(prompt, ended)

    def stored_answer(self, item: Item) -> Any:
        """Return the answer of an earlier call from the file; see `AnswerFile.answer`."""
        return None if self.file is None else self.file.answer(item)

    def write(self, ended: EndedItem) -> None:
        """Append the outcome of an item to the file, if there is one."""
        if self.file is not None:
            self.file.add(ended.item, ended.outcome, self.shaping.weights(ended.weights))

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()
