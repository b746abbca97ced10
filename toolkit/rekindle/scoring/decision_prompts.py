"""Prompts of typed questions: their texts, their tokens, and the token of each label."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final

from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation
from rekindle.core.request import checks
from rekindle.core.request.request import check_length
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import DecisionForm
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.template import template_variables
from rekindle.results.scores.questions import Question

MARK, SPLIT = "<|mark|>", "<|split|>"
"""Marks of a decision template: where the model is read, and where two texts are tokenized apart."""
NAMES: Final = {"choice": "choice", "yes_no": "noul", "score": "score"}
"""The kinds of questions in decision.json and in templates."""
_YES, _NO = "true", "false"


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """Place in a prompt where a question is answered.

    Attributes:
        token_ids: the tokens before the answer.
        labels: the token of each option, in the order of the question.
        temperature: the divisor of the logits of labels.
    """

    token_ids: tuple[int, ...]
    labels: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True)
class _Form:
    """Question in the order and the words of a model's form.

    Attributes:
        kind: the kind in the form's words.
        instructions: the question.
        options, labels, descriptions: the options, in the form's order.
    """

    kind: str
    instructions: str
    options: tuple[str, ...]
    labels: tuple[str, ...]
    descriptions: tuple[str | None, ...]

    @classmethod
    def of(cls, question: Question, form: DecisionForm) -> "_Form":
        kind = NAMES[question.kind]
        yes_no = question.kind == "yes_no"
        names: Sequence[str] = (_YES, _NO) if yes_no else question.names
        texts = dict(zip(names, question.descriptions, strict=True))
        if yes_no:
            names = form.noul_options
        labels = form.labels.get(kind) or (("Yes", "No") if yes_no else tuple(ascii_uppercase))
        if len(labels) < len(names):
            raise InvalidRequest(
                f"the model's decision.json has {len(labels)} labels for a {kind} question, and this one has "
                f"{len(names)} options"
            )
        return cls(kind, question.instructions, tuple(names), labels[: len(names)], tuple(texts[n] for n in names))

    def in_order_of(self, question: Question, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of labels in the order of the question."""
        by_option = dict(zip(self.options, tokens, strict=True))
        return tuple(by_option[name] for name in ((_YES, _NO) if question.kind == "yes_no" else question.names))

    @property
    def variables(self) -> Mapping[str, Any]:
        """The question as a variable of a template."""
        lists = {"options": self.options, "labels": self.labels, "descriptions": self.descriptions}
        texts = {"name": "", "type": self.kind, "instructions": _clean(self.instructions)}
        return texts | {name: [each and _clean(each) for each in values] for name, values in lists.items()}


def state_text(state: Any) -> str:
    """Return a state as the text of a prompt: a text as it is, anything else as JSON.

    Raises:
        InvalidRequest: the state is not JSON.
    """
    if isinstance(state, str):
        return checks.text("state", state, checks.LONGEST_LONG_TEXT)
    try:
        return json.dumps(state, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"state must be a text, a conversation or other JSON, got {checks.preview(state)}"
        ) from error


def readings_of(
    reader: PromptReader, form: DecisionForm, state: Any, questions: Sequence[Question], variables: Mapping[str, Any]
) -> list[AnswerPlace]:
    """Return the reading of each question about a state.

    Raises:
        InvalidRequest: the state is not JSON, the model has no chat template, a label is more than one token, or a
            prompt is too long.
    """
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so decide() cannot write its questions")
    template = form.template or tokenizer.chat_template
    if template is None:
        raise InvalidRequest(
            "decide() needs the model's chat template, and the model has none: pass chat_template= to open()"
        )
    off = {"enable_thinking": False} if "enable_thinking" in template_variables(template) else {}
    forms, text = [_Form.of(question, form) for question in questions], state_text(state)
    if form.template is None:
        prompts = [_plain(reader, text, each, {**off, **variables}) for each in forms]
    else:
        prompts = _by_template(tokenizer, form.template, text, forms, {**off, **variables})
    readings = []
    for prompt, each, question in zip(prompts, forms, questions, strict=True):
        check_length(prompt, reader.capacity)
        labels = each.in_order_of(question, label_ids(tokenizer, prompt, each.labels))
        readings.append(AnswerPlace(prompt, labels, form.temperature.get(each.kind, 1.0)))
    return readings


def question_text(form: _Form) -> str:
    """Return a question with its labelled options, in the words of `transformers serve`."""
    lines = [form.instructions] if form.instructions else []
    for label, option, text in zip(form.labels, form.options, form.descriptions, strict=True):
        if form.kind != "noul":
            name = option if form.kind == "choice" else ""
            lines.append(f"{label}. {': '.join(part for part in (name, text) if part)}")
        elif text or form.labels != ("Yes", "No"):
            lines.append(f"{label}: {text or option}")
    if form.kind == "noul":
        return "\n".join([*lines, f"Answer {form.labels[0]} or {form.labels[1]} only."])
    kind = "letter" if form.labels == tuple(ascii_uppercase[: len(form.labels)]) else "label"
    noun, span = ("option" if form.kind == "choice" else "level"), f"{form.labels[0]} to {form.labels[-1]}"
    return "\n".join([*lines, f"Answer with the {kind} of the {noun} that fits best ({span}) only."])


def label_ids(tokenizer: Tokenizer, prompt: Sequence[int], labels: Sequence[str]) -> list[int]:
    """Return the token that each label has as the first token after a prompt.

    Raises:
        InvalidRequest: a label is more than one token there, or two labels are the same token.
    """
    begin = max((place + 1 for place, token in enumerate(prompt) if token in tokenizer.added_ids), default=0)
    tail = list(prompt[begin:])
    text, tokens = tokenizer.decode(tail), list[int]()
    for label in labels:
        ids = tokenizer.encode_chat(text + label)
        if ids[:-1] != tail or ids[-1] in tokens:
            raise InvalidRequest(
                f"decide() needs {label!r} as one token after the prompt, which the model's tokenizer does not give: "
                "labels for the model belong into its decision.json"
            )
        tokens.append(ids[-1])
    return tokens


def _plain(reader: PromptReader, state: str, form: _Form, variables: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens of a question in the user's message of the model's chat template."""
    content = f"{state}\n\n{question_text(form)}"
    return reader.token_ids(Conversation([{"role": "user", "content": content}], None, variables))


def _by_template(
    tokenizer: Tokenizer, template: str, state: str, forms: Sequence[_Form], variables: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Return the tokens before the answer to each question by a decision template.

    A template with the variable `questions` writes one prompt for all questions, with a mark for each.
    """
    chat = ChatTemplate(template, tokenizer.bos_token, tokenizer.eos_token)
    whole = "questions" in template_variables(template)
    prompts = []
    for group in [forms] if whole else [[each] for each in forms]:
        every = [each.variables for each in group]
        values = {**variables, "state": _clean(state), "question": every[0], "questions": every}
        *before, after = chat.render([{"role": "user", "content": ""}], None, values).split(MARK)
        if len(before) not in (len(group), 0) or (whole and not before):
            raise InvalidRequest(
                f"the model's decision template marks {len(before)} places for {len(group)} questions, as models with "
                "a head for decisions do, which are not supported"
            )
        tokens = list[int]()
        for part in before or [after]:
            tokens += [token for text in part.split(SPLIT) for token in tokenizer.encode_chat(text)]
            prompts.append(tuple(tokens))
    return prompts


def _clean(text: str) -> str:
    """Return a text of a user without the marks of a template."""
    return text.replace(MARK, "").replace(SPLIT, "")
