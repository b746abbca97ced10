"""One call of `session.map`, checked."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rekindle.client.batches.run import Errors, Outcome
from rekindle.client.handle import Handle
from rekindle.client.prompts import GenerateOptions, one_chat
from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.checks import integer, preview
from rekindle.core.request.params import MOST_TOKENS, SamplingParams
from rekindle.mapping.answer_file import AnswerFile, shaping
from rekindle.mapping.items import Item, read
from rekindle.mapping.template import Template
from rekindle.results.generation import Generation
from rekindle.tools.tool import schemas_of

WINDOWS = 2
"""How many times the running set the window is, so that another request always waits where one ends."""


@dataclass(frozen=True, slots=True)
class MapCall:
    """The orders of a map: what to do with each item.

    Attributes:
        requests: of the session.
        ask: the keywords of each request.
        params: the same, checked.
        template: what the items fill; None for items that are prompts.
        file: where the answers are written; None for nowhere.
        errors: whether an error is raised, or returned in the place of its item.
        window: the most requests in the engine at once, and answers that nobody has taken.
    """

    requests: Requests
    ask: GenerateOptions[Any]
    params: SamplingParams
    template: Template | None
    file: AnswerFile | None
    errors: Errors
    window: int

    @classmethod
    def of(
        cls,
        requests: Requests,
        ask: GenerateOptions[Any],
        template: Any,
        path: str | os.PathLike[str] | None,
        errors: Any,
        window: int | None,
    ) -> "MapCall":
        """Check a call; nothing is read yet.

        Raises:
            InvalidRequest: a keyword that cannot be served.
            SessionError: the session is closed or its engine failed.
        """
        params = requests.params(ask)
        if errors not in ("raise", "return"):
            raise InvalidRequest(f'errors must be "raise" or "return", got {errors!r:.80}')
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InvalidRequest(f"path must be that of a file, got {preview(path)}")
        if template is not None and ask.get("token_ids") is not None:
            raise InvalidRequest("a template is filled with items; token_ids are prompts already")
        most = (
            WINDOWS * requests.loaded_engine.limits.groups * requests.loaded_engine.limits.max_running
            if window is None
            else integer("window", window, 1, MOST_TOKENS)
        )
        one_chat([{"role": "user", "content": "any"}], ask)  # what is wrong with every conversation is told once
        requests.check_engine()
        file = None
        if path is not None:
            file = AnswerFile(path, shaping(requests.loaded_engine.source, params, _options(ask)), params.constraint)
        filled = None if template is None else Template.of(template)
        return cls(requests, ask, params, filled, file, errors, most)

    def read(self, items: Iterable[Any]) -> Iterator[Item]:
        """Yield each item as it is asked for."""
        return read(items, self.template, self.ask, self.requests)

    def open(self) -> None:
        """Check what takes a while to check, and read the file."""
        self.requests.loaded_engine.preparer.check(self.params)
        if self.file is not None:
            self.file.open()

    def submit(self, prompt: Prompt) -> Handle:
        """Make the request of a prompt, which waits outside while the waiting queue is full."""
        return self.requests.made(prompt, self.params, self.ask, wait=True)

    def stored(self, item: Item) -> Generation | None:
        """Return the answer that an earlier call has written; see `AnswerFile.answer`."""
        return None if self.file is None else self.file.answer(item)

    def write(self, item: Item, outcome: Outcome) -> None:
        """Append what came of an item to the file, if there is one."""
        if self.file is not None:
            self.file.add(item, outcome)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.file is not None:
            self.file.close()


def _options(ask: GenerateOptions[Any]) -> dict[str, Any]:
    """Return what of a call shapes its prompts and is not their own."""
    tools, choice = ask.get("tools"), ask.get("tool_choice", "auto")
    return {
        "tools": None if tools is None else schemas_of(tools),
        "tool_choice": None if choice == "auto" else choice,
        "chat_template_kwargs": ask.get("chat_template_kwargs"),
        "continue_final_message": ask.get("continue_final_message"),
        "add_special_tokens": None if ask.get("add_special_tokens", True) else False,
    }
