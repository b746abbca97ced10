"""Call of `session.map`: its checked options, and its operations on one item."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.client.batches.run import Errors, Outcome
from rekindle.client.handle import Handle
from rekindle.client.prompts import PROMPT_DEFAULTS, GenerateOptions, one_chat
from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.checks import integer, preview
from rekindle.core.request.params import MOST_TOKENS, SamplingParams
from rekindle.mapping.answer_file import AnswerFile, shaping_options
from rekindle.mapping.items import Item, read
from rekindle.mapping.shaping import Shaping
from rekindle.mapping.template import Template
from rekindle.results.generation import Generation
from rekindle.tools.tool import schemas_of

WINDOWS = 2
"""Default window, as a multiple of the engine's slots, so that a request waits for each slot that becomes free."""


@dataclass(frozen=True, slots=True)
class MapCall:
    """Checked options of a map, and the operations on one item.

    Attributes:
        requests: the requests of the session.
        options: the options of each request.
        params: the sampling parameters of each request.
        template: the template for the items; None for items used as prompts.
        file: the file of answers; None without a file.
        errors: "raise" raises the first error; "return" returns each error in the place of its item.
        window: the maximum number of requests in flight plus answers not yet taken by the caller.
    """

    requests: Requests
    options: GenerateOptions[Any]
    params: SamplingParams
    template: Template | None
    file: AnswerFile | None
    errors: Errors
    window: int

    @classmethod
    def of(
        cls,
        requests: Requests,
        options: GenerateOptions[Any],
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
        params = requests.params(options)
        if errors not in ("raise", "return"):
            raise InvalidRequest(f'errors must be "raise" or "return", got {errors!r:.80}')
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"path must be a str or a path, got {preview(path)}")
        if template is not None and options.get("token_ids") is not None:
            raise InvalidRequest("template applies to items; leave it out for token_ids")
        most = (
            WINDOWS * requests.loaded_engine.limits.groups * requests.loaded_engine.limits.max_running
            if window is None
            else integer("window", window, 1, MOST_TOKENS)
        )
        one_chat([{"role": "user", "content": "any"}], options)  # raises errors shared by all conversations early
        requests.check_engine()
        file = None
        if path is not None:
            file = AnswerFile(
                path, shaping_options(requests.loaded_engine.source, params, _options(options)), params.constraint
            )
        checked_template = None if template is None else Template.of(template)
        return cls(requests, options, params, checked_template, file, errors, most)

    @property
    def shaping(self) -> Shaping:
        """Content of the session with an effect on answers."""
        return Shaping(self.requests.loaded_engine, self.requests.client)

    def read(self, items: Iterable[Any]) -> Iterator[Item]:
        """Yield items on demand; see `rekindle.mapping.items.read`."""
        return read(items, self.template, self.options, self.requests)

    def open(self) -> None:
        """Run the slow checks of the parameters, and read the file of answers. Called in a thread."""
        self.requests.loaded_engine.preparer.check(self.params)
        if self.file is not None:
            self.file.open(self.shaping.content(self.params.adapter))

    def submit(self, prompt: Prompt) -> Handle:
        """Submit the request of a prompt; it waits on the client's side while the queue is full.

        Raises:
            InvalidRequest: another adapter has the name since the file was opened.
        """
        if self.file is not None:
            self.file.check_adapter(self.shaping.adapter(self.params.adapter))
        return self.requests.submit(prompt, self.params, self.options, wait=True)

    def stored_answer(self, item: Item) -> Generation | None:
        """Return the answer of an earlier call from the file; see `AnswerFile.answer`."""
        return None if self.file is None else self.file.answer(item)

    def write(self, item: Item, outcome: Outcome) -> None:
        """Append the outcome of an item to the file, if there is one."""
        if self.file is not None:
            runs = outcome.weights_version if isinstance(outcome, Generation) else ()
            self.file.add(item, outcome, self.shaping.weights([version for version, _ in runs]))

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()


def _options(options: GenerateOptions[Any]) -> dict[str, Any]:
    """Return the options of a call that apply to all its prompts, without defaults."""
    values: Mapping[str, Any] = options
    values_in_use = {name: values[name] for name in PROMPT_DEFAULTS if values.get(name) is not None}
    shaping = {
        name: value for name, value in values_in_use.items() if name != "token_ids" and value != PROMPT_DEFAULTS[name]
    }
    return shaping | ({"tools": schemas_of(values_in_use["tools"])} if "tools" in values_in_use else {})
