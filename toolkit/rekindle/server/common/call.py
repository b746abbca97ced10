"""Session calls from request bodies: a prompt and keywords."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.client.calls.images import is_illustrated


@dataclass(frozen=True, slots=True)
class Streaming:
    """Usage reports of a stream.

    Attributes:
        usage: whether a last chunk reports the usage.
        continuous: whether each chunk reports the usage so far.
    """

    usage: bool = False
    continuous: bool = False


@dataclass(frozen=True, slots=True)
class TokenReports:
    """Reports about single tokens in an answer, in vLLM's form.

    Attributes:
        prompt: whether the answer has the log-probabilities of the prompt.
        ids: whether the answer has the token ids of the prompt and the output.
        by_id: whether log-probabilities name tokens by their ids.
    """

    prompt: bool = False
    ids: bool = False
    by_id: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `session.submit_all`.

    Attributes:
        prompt: the prompt; None if the keywords have token ids.
        options: the other keywords.
        n: the samples of each prompt; None for one, or if the prompts are repeated instead.
        choices: the choices of each prompt in the answer.
        fields: the field of the body for each keyword.
        streaming: the options of a stream; None for a complete answer.
        reports: the reports about single tokens.
    """

    prompt: Any
    options: Mapping[str, Any]
    n: int | None
    choices: int
    fields: Mapping[str, str]
    streaming: Streaming | None
    reports: TokenReports = TokenReports()

    @property
    def is_pictured(self) -> bool:
        """True if a conversation in the call has an image or a video."""
        prompts = self.prompt if isinstance(self.prompt, list) else []
        if prompts and isinstance(prompts[0], list):  # the choices of one conversation
            prompts = prompts[0]
        return is_illustrated([each for each in prompts if isinstance(each, dict)])

    @property
    def answers(self) -> int:
        """The number of answers."""
        prompts = self.options.get("token_ids") if self.prompt is None else self.prompt
        if isinstance(prompts, list) and prompts and isinstance(prompts[0], (list, str)):
            return len(prompts) * (self.n or 1)
        return self.n or 1

    @property
    def copies(self) -> int:
        """The number of times that each prompt is in the call."""
        return self.choices if self.n is None else 1

    @property
    def needs_calls(self) -> bool:
        """True if the answer must call a tool; its whole text is then a call."""
        return self.options.get("tool_choice", "auto") not in ("auto", "none")
