"""Typed questions are written as by transformers, and their answers are read from the probabilities of labels."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from rekindle import Choice, Decision, Decisions, InvalidRequest, Score, YesNo
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.core.errors import CheckpointError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.huggingface.decision_form import read_decision_form
from rekindle.formats.checkpoints.uses import DecisionForm
from rekindle.results.scores.questions import Question
from rekindle.scoring.decision_prompts import label_ids, readings_of, state_text
from rekindle.testing import fake_limits, fake_loaded_engine
from tests.unit.scripted import END, HERMES, tokenizer

TOPIC = Choice("Which topic?", {"sport": "games and athletes", "politics": None})
OWN_LABELS = DecisionForm({"noul": ("y", "n"), "choice": tuple("123")}, {"noul": 2.0}, ("false", "true"))


def words(template: str | None = HERMES) -> Tokenizer:
    """Return a tokenizer of characters, and of the labels of yes and no."""
    backend = tokenizer().backend
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in ("Yes", "No")])
    return Tokenizer(backend, chat_template=template, eos_token=END)


def reader(tokens: Tokenizer | None = None) -> PromptReader:
    loaded = fake_loaded_engine(fake_limits(max_context=512, num_pages=128, page_size=16), tokenizer=tokens or words())
    result: PromptReader = loaded.preparer.prompts
    return result


def prompt_text(question: Question, form: DecisionForm | None = None, state: str = "S") -> str:
    """Return the text of the prompt of a question about a state."""
    (reading,) = readings_of(reader(), form or DecisionForm(), state, [question], {})
    return words().decode(reading.token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("question", "form", "text"),  # the texts are those of transformers 5.24
    [
        (
            TOPIC,
            None,
            "Which topic?\nA. sport: games and athletes\nB. politics\n"
            "Answer with the letter of the option that fits best (A to B) only.",
        ),
        (YesNo("Is it so?"), None, "Is it so?\nAnswer Yes or No only."),
        (YesNo("Is it so?", yes="all"), None, "Is it so?\nYes: all\nAnswer Yes or No only."),
        (YesNo("Is it so?", yes="all"), OWN_LABELS, "Is it so?\ny: false\nn: all\nAnswer y or n only."),
        (
            Score("How far?", ["near", "far"]),
            None,
            "How far?\nA. near\nB. far\nAnswer with the letter of the level that fits best (A to B) only.",
        ),
        (
            Score("", 3),
            None,
            "A. 0 (lowest)\nB. 1\nC. 2 (highest)\nAnswer with the letter of the level that fits best (A to C) only.",
        ),
        (
            Choice("Which?", ["a", "b"]),
            OWN_LABELS,
            "Which?\n1. a\n2. b\nAnswer with the label of the option that fits best (1 to 2) only.",
        ),
    ],
)
def test_a_question_is_written_as_by_transformers(question: Question, form: DecisionForm | None, text: str) -> None:
    assert prompt_text(question, form) == f"<|im_start|>user\nS\n\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_labels_are_in_the_order_of_the_question_whatever_the_order_of_the_form() -> None:
    (reading,) = readings_of(reader(), OWN_LABELS, "S", [YesNo("?")], {})
    assert words().decode(reading.labels) == "ny", "true is the second option of the form"
    assert reading.temperature == 2.0


def test_a_state_that_is_no_text_is_read_as_json() -> None:
    chat = [{"role": "user", "content": "Grüße"}]
    assert state_text(chat) == '[{"role": "user", "content": "Grüße"}]'
    assert state_text("as it is\n") == "as it is\n"
    with pytest.raises(InvalidRequest, match="state must be a text, a conversation or other JSON"):
        state_text({1, 2})


ONE_BY_ONE = "{{ question.instructions }}|{{ state }}<|split|>{{ question.labels | join }}<|mark|> unread"
TOGETHER = "{{ state }}{% for q in questions %} {{ q.instructions }}:<|mark|>{% endfor %}"


def test_a_decision_template_is_read_at_its_marks() -> None:
    questions: list[Question] = [TOPIC, YesNo("Is<|mark|> it?")]
    readings = readings_of(reader(), DecisionForm(template=ONE_BY_ONE), "a<|split|>b", questions, {})
    assert [words().decode(each.token_ids) for each in readings] == ["Which topic?|abAB", "Is it?|abYesNo"]


def test_a_template_for_all_questions_has_a_mark_for_each() -> None:
    form = DecisionForm({"noul": ("y", "n")}, template=TOGETHER)
    readings = readings_of(reader(), form, "S", [YesNo("one"), YesNo("two")], {})
    assert [words().decode(each.token_ids) for each in readings] == ["S one:", "S one: two:"]
    head = DecisionForm({"noul": ("y", "n")}, template="<|mark|>a<|mark|>{{ question.instructions }}<|mark|>")
    with pytest.raises(InvalidRequest, match="marks 3 places for 1 questions, as models with a head"):
        readings_of(reader(), head, "S", [YesNo("one")], {})


def test_labels_of_several_tokens_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'Yes' as one token after the prompt"):
        readings_of(reader(tokenizer()), DecisionForm(), "S", [YesNo("?")], {})
    ids = tokenizer().encode_chat("<|im_start|>assistant\n")
    with pytest.raises(InvalidRequest, match="'A' as one token"):
        label_ids(tokenizer(), ids, ["A", "A"])
    with pytest.raises(InvalidRequest, match="'h' as one token"):
        label_ids(tokenizer(), tokenizer().encode_chat("<|im_end|>t"), ["A", "h"])


def test_a_model_without_a_chat_template_has_a_cure() -> None:
    with pytest.raises(InvalidRequest, match=r"pass chat_template= to open\(\)"):
        readings_of(reader(words(None)), DecisionForm(), "S", [TOPIC], {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choice("?", []), "a Choice needs 1 to 26 options, got 0"),
        (lambda: Choice("?", [str(each) for each in range(27)]), "a Choice needs 1 to 26 options, got 27"),
        (lambda: Choice("?", ["a", "b", "a"]), "must differ, and 'a' is there twice"),
        (lambda: Choice("?", ["a", ""]), "an option of a Choice must be a text, got ''"),
        (lambda: Choice("?", "ab"), "must be names with descriptions, or a list of names"),
        (lambda: Choice("?", {"a": 1, "b": None}), "the description of an option"),  # type: ignore[dict-item]
        (lambda: Choice(1, ["a", "b"]), "instructions"),  # type: ignore[arg-type]
        (lambda: YesNo("?", yes=" "), "yes must not be empty"),
        (lambda: Score("?", 1), "a Score needs 2 to 26 levels, got 1"),
        (lambda: Score("?", ["x", "x"]), "levels of a Score must differ"),
        (lambda: Score("?", 2.5), "levels of a Score must be a number or a list of texts"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_question_is_refused_where_it_is_written(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_answers_and_confidences_are_those_of_system_one() -> None:
    topic = Decision(TOPIC, {"sport": 0.8, "politics": 0.2}, 0.9)
    assert (topic.answer, str(topic)) == ("sport", "sport")
    assert topic.confidence == pytest.approx(0.6)
    unsure = Decision(YesNo("?"), {"yes": 0.4, "no": 0.6}, 0.9)
    assert (unsure.answer, str(unsure)) == (False, "no")
    assert unsure.confidence == pytest.approx(0.2)
    level = Decision(Score("?", 5), dict(zip("01234", (0.1, 0.2, 0.4, 0.2, 0.1), strict=True)), 1.0)
    assert level.answer == pytest.approx(2.0)
    assert level.confidence == pytest.approx(1 - 0.8 / 1.2), "1 - mean distance / that of even shares"
    even = Decision(Score("?", 2), {"0": 0.5, "1": 0.5}, 1.0)
    assert even.confidence == pytest.approx(0.0)


def test_decisions_are_shown_as_a_table_and_as_text() -> None:
    both = Decisions(
        (Decision(TOPIC, {"sport": 0.8, "politics": 0.2}, 0.9), Decision(YesNo("<b>"), {"yes": 1, "no": 0}, 1))
    )
    assert both.answers == ("sport", True)
    assert len(both) == 2
    assert "Which topic?" in repr(both)
    html = both._repr_mimebundle_()["text/html"]
    assert "80.0%" in html
    assert "&lt;b&gt;" in html
    assert "games and athletes" in both[0]._repr_mimebundle_()["text/html"]


def test_a_models_files_change_the_form(tmp_path: Path) -> None:
    assert read_decision_form(tmp_path) == DecisionForm()
    settings = (
        '{"labels": {"noul": ["y", "n"]}, "temperature": {"score": 2}, "noul_options": ["false", "true"], "x": 1}'
    )
    (tmp_path / "decision.json").write_text(settings)
    (tmp_path / "decision_template.jinja").write_text("{{ state }}")
    expected = DecisionForm({"noul": ("y", "n")}, {"score": 2.0}, ("false", "true"), "{{ state }}")
    assert read_decision_form(tmp_path) == expected
    for wrong in (
        '{"labels": {"noul": "yn"}}',
        '{"labels": ["x"]}',
        '{"noul_options": ["a"]}',
        '{"temperature": {"score": 0}}',
    ):
        (tmp_path / "decision.json").write_text(wrong)
        with pytest.raises(CheckpointError, match=r"decision.json: expected labels"):
            read_decision_form(tmp_path)
