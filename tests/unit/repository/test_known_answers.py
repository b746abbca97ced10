"""The README, its film and the tutorials ask what the default model knows, and show right answers.

`tests/engine/test_known_answers.py` asks the model, and `tests/notebook/test_documents.py` runs the README's cells.
"""

import ast
import json
import re
from pathlib import Path

import pytest

from tests.documents import ANSWERS, ROOT, blocks, missing_words

QUESTION = re.compile(r'"((?:And|Explain|How|In which|What|Why|Who)\b[^"\n]*)"')
TUTORIALS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def film_questions() -> list[str]:
    """Return the questions of the film from the source, because the module imports a browser."""
    tree = ast.parse((ROOT / "tests" / "browser" / "film.py").read_text())
    (value,) = (
        each.value for each in tree.body if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "QUESTIONS"
    )
    assert value is not None
    questions: list[str] = list(ast.literal_eval(value))
    return questions


def test_each_question_of_the_readme_and_of_its_film_has_a_known_answer() -> None:
    readme = [block.text for block in blocks(ROOT / "README.md", "python")]
    questions = [*film_questions(), *(each for cell in readme for each in QUESTION.findall(cell))]
    assert len(questions) >= 5
    assert [each for each in questions if each not in ANSWERS] == []


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_the_committed_outputs_of_a_tutorial_have_the_right_answers(tutorial: Path) -> None:
    for cell in json.loads(tutorial.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert missing_words("".join(cell["source"]), json.dumps(cell["outputs"], ensure_ascii=False)) == []


def test_words_are_missed_only_where_their_question_stands() -> None:
    cell = 'await chat.say("What is the capital of France?")'
    assert missing_words(cell, "<b>London</b>") == ["Paris"]
    assert missing_words(cell, "It is <b>Paris</b>.") == missing_words("chat.say('Hi')", "Hello") == []
