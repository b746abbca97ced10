"""A model that runs errands: in each round it calls tools one after the other, and then says that it is done."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

import pytest

from rekindle.server.listening.running import Server
from tests.unit.scripted import scripted_session

ROUND: Final = re.compile(r"ROUND-(\d)")
CONTEXT: Final = 131_072
"""The longest conversation, in tokens, which are characters here: coding agents have long instructions."""


@dataclass(slots=True)
class Errands:
    """Script of a session for the rounds of a conversation.

    Attributes:
        calls: the calls of each round: names and arguments.
        results: the text that must be in the result of each call, by round.
        prompts: the conversations so far, as the model read them.
    """

    calls: Sequence[Sequence[tuple[str, Mapping[str, Any]]]]
    results: Sequence[Sequence[str]]
    prompts: list[str] = field(default_factory=list)

    def __call__(self, prompt: str) -> str:
        """Return the next call of the latest round, or the text at its end."""
        self.prompts.append(prompt)
        rounds = list(ROUND.finditer(prompt))
        if not rounds or not self._is_errand(prompt, rounds[-1].start()):
            return "A title."  # such as for the list of sessions
        number = int(rounds[-1][1])
        results = [
            each.partition("<|im_end|>")[0] for each in prompt[rounds[-1].start() :].split("<|im_start|>tool\n")[1:]
        ]
        for result, text in zip(results, self.results[number - 1], strict=False):
            if text not in result:
                return f"WRONG-{number}: {result!r:.500} lacks {text!r}"
        calls = self.calls[number - 1]
        if len(results) >= len(calls):
            return f"DONE-{number}"
        name, arguments = calls[len(results)]
        call = json.dumps({"name": name, "arguments": arguments})
        return f"<think>step {len(results) + 1}</think><tool_call>{call}</tool_call>"

    def _is_errand(self, prompt: str, at: int) -> bool:
        """Return True if the tools of the round are in the prompt; requests beside a conversation have none."""
        head = prompt[: prompt.find("<|im_end|>")]
        return all(name in head for calls in self.calls for name, _ in calls)


@contextmanager
def serving(errands: Errands) -> Iterator[Server]:
    """Serve a model that runs errands, for clients with the key "key"."""
    with (
        pytest.MonkeyPatch.context() as patch,
        scripted_session(patch, errands, max_context=CONTEXT) as session,
        session.serve_sync(port=0, api_keys=["key"]) as server,
    ):
        patch.setattr("rekindle.client.submission.token_hex", token_hex)  # agents need calls of different ids
        yield server
