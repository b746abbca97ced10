"""Session calls from request bodies: a prompt and keywords."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.client.calls.images import is_illustrated
from rekindle.core.text.constraints.parser import parse_bytes

FORMS: Final = ("json_schema", "regex", "choice")
"""The keywords of constraints that may stand beside tools: an answer then has calls, or this form."""
LONGEST: Final = 1000
"""Most characters of a regular expression and of a text to compare, which takes the time of the event loop."""
_VALUE: Final = re.compile(r'\s*(?:[{"\dtfn-]|\[(?!\s*[A-Za-z_][\w.-]*\()|\Z)')
"""The beginning of a JSON value, and not of a call in Python's notation."""
_NAMED: Final = re.compile(r'\s*\{\s*"name"\s*:')
"""The beginning of a call in JSON without a delimiter."""


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
        end: the end token of the model's tokenizer, or None: unless it is ignored, its stop has no reason.
    """

    prompt: Any
    options: Mapping[str, Any]
    n: int | None
    choices: int
    fields: Mapping[str, str]
    streaming: Streaming | None
    reports: TokenReports = TokenReports()
    end: int | None = None

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

    def may_have(self, content: str) -> bool:
        """Return True for a text that may be the content of an answer, or its beginning.

        It is none where the answer must call a tool, or where the answer has calls or a form, and the text does not
        begin as the form does: then it is the cut beginning of a call.
        """
        if self.needs_calls:
            return False
        form = next((name for name in FORMS if self.options.get(name) is not None), None)
        has_calls = bool(self.options.get("tools")) and self.options.get("tool_choice") != "none"
        if form is None or not has_calls or self.options.get("continue_final_message"):
            return True
        return _begins(form, self.options[form], content[:LONGEST])


def _begins(form: str, value: Any, text: str) -> bool:
    """Return True if a constraint allows an output that begins with a text, as far as a short look tells."""
    match form:
        case "json_schema":
            has_name = isinstance(value, Mapping) and "name" in (value.get("properties") or ("name",))
            return bool(_VALUE.match(text)) and (has_name or not _NAMED.match(text))
        case "choice":
            return any(str(each).strip().startswith(text.strip()) for each in value)
    if not isinstance(value, str) or len(value) > LONGEST:
        return True
    matcher = parse_bytes("regex", value, form)
    data = [f"{space}{text}".encode("utf-8", "surrogatepass") for space in ("", " ", "\n")]
    return any(matcher.deep_copy().consume_tokens(list(each)) for each in data)
