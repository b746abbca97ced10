"""Task of a map: the answers to typed questions about each item."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.content import content_digest
from rekindle.core.errors import InvalidRequest, SessionError
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingParams
from rekindle.mapping.entries import DecisionEntry
from rekindle.mapping.results import MapDecisions
from rekindle.mapping.shaping import DIGITS
from rekindle.results.answer_table import PromptLabel
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decisions
from rekindle.results.scores.questions import Question
from rekindle.scoring.decision_call import DecisionCall, ScoredPrompt, check_questions
from rekindle.scoring.decision_prompts import state_text

OPTIONS: Final = ("chat_template_kwargs", "cache_salt", "adapter")
"""Options of a map with questions, beside those of all maps."""
AT_ONCE: Final = 8
"""Items entered before the caller's loop runs other tasks, as their prompts are written and tokenized on it."""


class DecisionWork:
    """Requests for the decisions of one item: the first one alone, then the others with the state in the cache.

    Args:
        call: the call for decisions.
        state: the text of the state.
        ended: called from any thread when a request ends.

    Raises:
        InvalidRequest: a label of a question is not one token, or a prompt is too long.
        SessionError: the session is closed or its engine failed.
    """

    def __init__(self, call: DecisionCall, state: str, ended: Callable[[], None]):
        self._call, self._ended = call, ended
        self._readings = call.readings(state)
        prompts = [prompt for group in call.prompts(self._readings) for prompt in group]
        self._waiting = prompts[1:]
        self._handles: list[Handle] = []
        self._failure: Exception | None = None
        self._submit(prompts[:1])

    def settle(self) -> bool:
        """Submit the requests behind the first one; return True if all have ended."""
        if not all(handle.done for handle in self._handles):
            return False
        waiting, self._waiting = self._waiting, []
        if not waiting or self._failed is not None:
            return True
        try:
            self._submit(waiting)
        except (InvalidRequest, SessionError) as error:
            self._failure = error
            self.cancel()
        return all(handle.done for handle in self._handles)

    @property
    def outcome(self) -> Decisions | Exception:
        """Decisions of the ended requests, or the first error."""
        failed = self._failed
        return failed or self._call.decisions(self._readings, self._generations())

    @property
    def generated(self) -> int:
        """Number of tokens generated so far: one per ended request."""
        return sum(handle.record.generated for handle in tuple(self._handles))

    @property
    def weights(self) -> Sequence[int]:
        """Numbers of the weights of all answers."""
        return [version for each in self._generations() for version, _ in each.weights_version]

    def cancel(self) -> None:
        """Cancel the requests."""
        self._waiting = []
        for handle in self._handles:
            handle.cancel()

    @property
    def _failed(self) -> Exception | None:
        outcomes = (handle.record.outcome for handle in self._handles)
        return self._failure or next((each for each in outcomes if isinstance(each, Exception)), None)

    def _generations(self) -> Iterator[Generation]:
        outcomes = (handle.record.outcome for handle in self._handles)
        return (each for each in outcomes if isinstance(each, Generation))

    def _submit(self, prompts: Sequence[ScoredPrompt]) -> None:
        for token_ids, params in prompts:
            handle = self._call.requests.compute(token_ids, params)
            self._handles.append(handle)
            handle.record.pieces.when_closed(self._ended)


@dataclass(frozen=True, slots=True)
class DecisionTask:
    """Answers to questions about each item.

    Attributes:
        call: the call for decisions.
        questions: the questions by the names of their columns.
        params: sampling parameters with the adapter of the call.
        shaping: the options of the call with an effect on decisions.
    """

    call: DecisionCall
    questions: Mapping[str, Question]
    params: SamplingParams
    shaping: Mapping[str, Any]
    at_once: int = AT_ONCE

    @classmethod
    def of(cls, requests: Requests, questions: Any, options: Mapping[str, Any]) -> "DecisionTask":
        """Check the questions and the options of a map.

        Raises:
            InvalidRequest: a question or an option is invalid, or of generations.
            SessionError: the session is closed or its engine failed.
        """
        others = [name for name in options if name not in OPTIONS]
        if others:
            raise InvalidRequest(
                f"a map with questions generates no text, so leave out {', '.join(others)}; beside the options of all "
                f"maps, it takes {', '.join(OPTIONS)}"
            )
        names = named_questions(questions)
        variables = options.get("chat_template_kwargs")
        if variables is not None and not isinstance(variables, Mapping):
            raise InvalidRequest(f"chat_template_kwargs must be a mapping, got {checks.preview(variables)}")
        call = DecisionCall.of(
            requests, list(names.values()), variables, options.get("cache_salt", ""), options.get("adapter")
        )
        form = requests.engine.facts.checkpoint.uses.decisions
        shaping = {
            "questions": [_content(each) for each in names.values()],
            "decision_form": f"#{content_digest(form)[:DIGITS]}",
        }
        variables = {"chat_template_kwargs": variables} if variables else {}
        return cls(call, names, SamplingParams(adapter=call.adapter), {**shaping, **variables})

    @property
    def entry(self) -> DecisionEntry:
        """Entry of the decisions in a line of the file."""
        return DecisionEntry(self.questions)

    def check(self) -> None:
        """Render the questions about an empty state: errors of the questions end the map at its start."""
        self.call.readings("")

    def prompt(self, value: Any) -> Prompt:
        """Return the text of the state of an item, or of its filled template."""
        if value is None:
            raise InvalidRequest("the item is None; give a text, a conversation or other JSON")
        return state_text(value)

    def submit(self, prompt: Prompt, ended: Callable[[], None]) -> DecisionWork:
        """Submit the first request about a state; see `DecisionWork`."""
        assert isinstance(prompt, str), "the prompt of an item is the text of its state"
        return DecisionWork(self.call, prompt, ended)

    def results(self, outcomes: Sequence[Any], prompts: Sequence[PromptLabel], items: Sequence[Any]) -> MapDecisions:
        """Return the results of the map, with a note if an option wins for nearly all items."""
        results = MapDecisions(outcomes, prompts, items, self.questions)
        if None not in results:
            for remark in results.one_sided:
                self.call.requests.note_once("one-sided decisions", remark)
        return results


def named_questions(questions: Any) -> dict[str, Question]:
    """Return questions by the names of their columns. Without names, their instructions are the names.

    Raises:
        InvalidRequest: there is no question, something else, or two questions have the same name.
    """
    if isinstance(questions, Mapping):
        for name in questions:
            if not isinstance(name, str) or not name.strip():
                raise InvalidRequest(f"the name of a question must be a text, got {checks.preview(name)}")
        return dict(zip(questions, check_questions(list(questions.values())), strict=True))
    several = check_questions(questions)
    names = [each.instructions for each in several]
    if len(set(names)) < len(names) or not all(names):
        raise InvalidRequest(
            'questions with equal or empty instructions need names for their columns: questions={"name": ...}'
        )
    return dict(zip(names, several, strict=True))


def _content(question: Question) -> list[Any]:
    """Return the content of a question as JSON."""
    return [question.kind, question.instructions, list(question.names), list(question.descriptions)]
