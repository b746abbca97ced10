"""lm-eval gets over HTTP the numbers that it gets in process."""

import json
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

import rekindle
from rekindle.server.listening.running import Server
from rekindle.session.lm_eval import RekindleLM
from tests.clients.conftest import NAME

ROWS = [
    {"question": "The sun is", "choices": ["hot", "cold", "a very long answer"], "answer": 0},
    {"question": "Ice is", "choices": ["hot", "cold"], "answer": 1},
    {"question": "A text of more than a page of tokens:", "choices": ["x", "y", "z"], "answer": 2},
]
TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "perplexities": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "texts": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    for name, task in TASKS.items():
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
        }
        (folder / f"{name}.yaml").write_text(json.dumps({**common, **task}), encoding="utf-8")
    return TaskManager(include_path=str(folder))


def evaluated(tasks: TaskManager, names: list[str], **model: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the numbers of some tasks, and all answers."""
    found: Any = lm_eval.simple_evaluate(tasks=names, task_manager=tasks, log_samples=True, bootstrap_iters=0, **model)
    answers = [sample["filtered_resps"] for name in names for sample in found["samples"][name]]
    return {name: found["results"][name] for name in names}, answers


def test_local_completions_give_the_numbers_of_the_class_in_process(
    server: Server, session: rekindle.Session, tasks: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    arguments = f"model={NAME},base_url={server.url}/v1/completions,tokenizer_backend=remote,max_length=512"
    remote, said = evaluated(tasks, [*TASKS], model="local-completions", model_args=arguments)
    local, expected = evaluated(tasks, [*TASKS], model=RekindleLM(session=session))
    for name, numbers in local.items():
        for metric, value in numbers.items():
            if isinstance(value, float):
                assert remote[name][metric] == pytest.approx(value, rel=1e-4), (name, metric)
    assert len(said) == len(expected) == 3 * len(ROWS)
    assert said[-len(ROWS) :] == expected[-len(ROWS) :]


def test_local_chat_completions_give_the_texts_of_the_class_in_process(
    server: Server, session: rekindle.Session, tasks: TaskManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    arguments = f"model={NAME},base_url={server.url}/v1/chat/completions"
    _, said = evaluated(
        tasks, ["texts"], model="local-chat-completions", model_args=arguments, apply_chat_template=True
    )
    chats: Any = [[{"role": "user", "content": row["question"]}] for row in ROWS]
    answers = session.generate_sync(chats, max_tokens=8, stop="\n\n", temperature=0)
    assert [each[0] for each in said] == [answer.content for answer in answers]
