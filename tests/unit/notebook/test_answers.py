"""The answers of a batch are a list, shown by a cell as a table of bounded size."""

import copy
import json
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.lib.pretty import pretty

from rekindle.core.errors import BatchFailed, InvalidRequest, PromptTooLong
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.answer_table import MOST_ROWS, MOST_SHADED
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.waiting import PATIENCE, until_blocking

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 1?"}]


@pytest.fixture(scope="module")
def texts(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template=template)
    with fake_session(fake_loaded_engine(fake_limits(max_context=64), tokenizer=tokenizer)) as session:
        yield session


def table(answers: Answers[Any]) -> list[str]:
    """Return the lines of IPython's table in a terminal."""
    format_object: Any = DisplayFormatter().format
    plain: str = format_object(answers)[0]["text/plain"]
    assert plain == answers._repr_mimebundle_()["text/plain"]
    return plain.splitlines()


def html(answers: Answers[Any]) -> str:
    return answers._repr_mimebundle_()["text/html"]


# A list


def test_answers_are_a_list(texts: Session) -> None:
    answers = texts.generate_sync(["a", "b", "c"], max_tokens=3)
    assert type(answers) is Answers
    assert answers == list(answers) == [*answers]
    assert repr(answers) == repr(list(answers))
    printed: Any = pretty
    assert printed([answers]) == f"[{answers!r}]"
    assert isinstance(answers[0], Generation)
    assert type(answers[1:]) is Answers
    assert (answers[1:], answers[1:].prompts) == ([answers[1], answers[2]], ["b", "c"])
    assert answers[::-1].prompts == ["c", "b", "a"]
    for again in (pickle.loads(pickle.dumps(answers)), copy.copy(answers), copy.deepcopy(answers)):
        assert (type(again), again, again.prompts) == (Answers, answers, answers.prompts)


def test_an_answer_keeps_its_prompt_where_the_list_is_changed(texts: Session) -> None:
    answers = texts.generate_sync(["a", "b", "c"], max_tokens=3)
    answers.reverse()
    assert answers.prompts == ["c", "b", "a"]
    del answers[1]
    assert answers.prompts == ["c", "a"]
    answers.append(texts.generate_sync("d", max_tokens=2))
    assert answers.prompts == ["c", "a", None]
    shared = PromptTooLong("too long")
    both: Answers[Any] = Answers([shared, None, shared, None], ["a", "b", "c", "d"])
    assert both.prompts == ["a", "b", "c", "d"]
    assert both[1:].prompts == ["b", "c", "d"]
    del both[0]
    assert both.prompts == [None, None, None], "they are told apart no more"


def test_prompts_are_what_was_given(texts: Session) -> None:
    mixed: Any = ["a", CHAT, "", 7, "b" * 64]
    answers = texts.generate_sync(mixed, max_tokens=2, errors="return")
    assert answers.prompts == ["a", "What is 1 + 1?", "", "7", "b" * 64]
    assert texts.generate_sync(token_ids=[[1, 2], [3]], max_tokens=2).prompts == [(1, 2), (3,)]
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert texts.generate_sync([parts], max_tokens=2).prompts == ["one two"]
    with texts.prefix_sync("a") as prefix:
        assert prefix.generate_sync(["b", "c"], max_tokens=2).prompts == ["b", "c"]
        assert prefix.generate_sync(n=2, max_tokens=2).prompts == ["a", "a"]


def test_both_a_list_and_draws_are_answers_in_answers(texts: Session) -> None:
    answers = texts.generate_sync(["a", "b"], n=2, seed=1, max_tokens=2)
    assert [type(group) for group in answers] == [Answers, Answers]
    assert answers.prompts == ["a", "b"]
    assert answers[1].prompts == ["b", "b"]
    assert [line.split()[0] for line in table(answers)[2:]] == ["[0][0]", "[0][1]", "[1][0]", "[1][1]"]


def test_what_a_failed_batch_leaves_is_shown_as_a_table_too(settler: FakeSettler, byte_tokenizer: Tokenizer) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(max_running=1), tokenizer=byte_tokenizer, settler=settler)
    with ThreadPoolExecutor(1) as pool, fake_session(loaded_engine) as session:  # which ends the call if a check fails
        asking = pool.submit(session.generate_sync, token_ids=[[1], [2]], max_tokens=1)
        until_blocking(lambda: len(session.requests) == 2, "both are asked")
        first, second = session.requests.values()
        settler.step()
        assert first.record.pieces.wait_blocking(1, PATIENCE)
        second.cancel()
        error: Any = asking.exception(PATIENCE)
        settler.release()
    assert isinstance(error, BatchFailed)
    results: Any = error.results
    assert type(results) is type(pickle.loads(pickle.dumps(error)).results) is Answers
    assert results.prompts == [(1,), (2,)]
    assert table(results)[0] == "Answers: 2, 1 error, 1 token"
    assert "RequestCancelled: the request was cancelled" in table(results)[3]


# The table


def test_long_texts_unfold_and_are_escaped(texts: Session) -> None:
    generation = replace(texts.generate_sync("a", max_tokens=2), text="One line.")
    long = "<b>" + "word " * 200
    answers = Answers([generation, generation], [long, "short"])
    assert max(map(len, table(answers))) < 120
    assert html(answers).count("<details>") == 1
    assert "<b>word" not in html(answers)
    assert "&lt;b&gt;" + "word " * 200 in html(answers)


def test_an_answer_unfolds_to_its_heat_map(texts: Session) -> None:
    plain, shaded = (texts.generate_sync(["a", "b"], max_tokens=3, logprobs=each) for each in (None, 0))
    assert "less likely" not in html(plain)
    assert html(shaded).count("less likely") == 2
    (generation,) = texts.generate_sync(["a"], max_tokens=50, logprobs=0)
    many = html(Answers([generation] * MOST_ROWS * 2))
    assert many.count("less likely") == min(MOST_ROWS, MOST_SHADED // 50)


def test_thousands_of_answers_are_counted(texts: Session) -> None:
    (generation,) = texts.generate_sync(["a"], max_tokens=2)
    answers = Answers([generation] * 5000, ["a"] * 5000)
    assert table(answers)[0] == "Answers: 5,000, 10,000 tokens"
    assert table(answers)[-1] == f"and {5000 - MOST_ROWS:,} more"
    assert len(table(answers)) == MOST_ROWS + 3
    assert html(answers).count("<tr") == MOST_ROWS + 1
    assert f"and {5000 - MOST_ROWS:,} more" in html(answers)
    assert not texts.generate_sync(list[str](), max_tokens=2)


# A data frame


class Frame:
    """A stand-in for a data frame, with a record of its arguments."""

    def __init__(self, rows: list[dict[str, Any]], columns: list[str], index: Any):
        self.rows, self.columns, self.index = rows, columns, index
        self.types: dict[str, str] = {}

    def astype(self, types: dict[str, str]) -> "Frame":
        self.types = types
        return self


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in in the place of pandas, which no test here needs installed."""
    module: Any = ModuleType("pandas")
    module.DataFrame = Frame
    module.MultiIndex = type("MultiIndex", (), {"from_tuples": staticmethod(lambda tuples, names: (tuples, names))})
    monkeypatch.setitem(sys.modules, "pandas", module)


@pytest.mark.usefixtures("pandas")
def test_a_data_frame_has_a_row_for_each(texts: Session) -> None:
    good, bad = texts.generate_sync(["ab", ""], max_tokens=3, errors="return")
    assert isinstance(good, Generation)
    frame = Answers([good, bad, None], ["ab", "", "c"]).to_frame()
    values = dict.fromkeys(frame.columns)
    assert frame.rows == [
        {
            "prompt": "ab",
            "answer": good.text,
            "finish_reason": "length",
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "cached_tokens": 0,
            "seconds": good.timings.total,
            "error": None,
        },
        values | {"prompt": "", "error": f"InvalidRequest: {bad}"},
        values | {"prompt": "c"},
    ]
    assert frame.index is None
    assert frame.types["cached_tokens"] == "Int64"
    nested = texts.generate_sync(["a", "b"], n=2, seed=1, max_tokens=2).to_frame()
    assert nested.index == ([(0, 0), (0, 1), (1, 0), (1, 1)], ["place", "draw"])
    assert isinstance(bad, InvalidRequest)


def test_without_pandas_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        Answers().to_frame()


# A file


def test_a_file_of_json_lines_has_all_of_each(texts: Session, tmp_path: Path) -> None:
    prompts: Any = ["ab", "", "\ud800", CHAT]
    answers = texts.generate_sync(prompts, max_tokens=3, logprobs=1, errors="return")
    for _ in range(2):  # the second time it is replaced
        Answers([*answers, None], [*answers.prompts, "c"]).to_jsonl(tmp_path / "answers.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["place"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["prompt"] for line in lines] == ["ab", "", "\ud800", "What is 1 + 1?", "c"]
    assert [Generation.from_dict(lines[place]["generation"]) for place in (0, 3)] == [answers[0], answers[3]]
    assert lines[1]["error"] == f"InvalidRequest: {answers[1]}"
    assert (lines[1]["generation"], lines[0]["error"], lines[4]["error"]) == (None, None, None)
    nested = texts.generate_sync(token_ids=[[1], [2]], n=2, seed=1, max_tokens=2)
    nested.to_jsonl(str(tmp_path / "draws.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "draws.jsonl").read_text().splitlines()]
    rows = [(line["place"], line["draw"], line["prompt"]) for line in lines]
    assert rows == [(0, 0, [1]), (0, 1, [1]), (1, 0, [2]), (1, 1, [2])]
