"""lm-eval gets a session's log-likelihoods and texts, and finds one by its name."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model, model_registry

import rekindle
from rekindle.__main__ import main
from rekindle.session.lm_eval import RekindleLM
from rekindle.settings.engine import SettingsOptions
from tests.sentence_models import END, embedding_model

SMALL: SettingsOptions = {
    "page_size": 16,
    "max_context": 64,
    "max_running": 4,
    "precompile": "lazy",
    "dtype": "float32",
}
GUIDE = Path(__file__).parents[2] / "tutorials" / "guides" / "evaluating.md"
CONTEXT = "A context of more than one page: "


@pytest.fixture(scope="module")
def model(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tiny generative model with bytes in its tokenizer."""
    return embedding_model(families / "qwen3-embed", tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(model, progress=False, **SMALL) as tiny:
        yield tiny


@pytest.fixture(scope="module")
def lm(session: rekindle.Session) -> RekindleLM:
    return RekindleLM(session=session)


def instances(kind: Any, *arguments: Any) -> list[Instance]:
    return [Instance(kind, {}, each, 0) for each in arguments]


def test_likelihoods_are_the_scores_of_the_session(lm: RekindleLM, session: rekindle.Session) -> None:
    pairs = [(CONTEXT, "one"), (CONTEXT, "two and more"), ("x", "y"), (CONTEXT.rstrip(), " one")]
    results = lm.loglikelihood(instances("loglikelihood", *pairs), disable_tqdm=True)
    expected = [session.score_sync(context, option) for context, option in pairs]
    assert [total for total, _ in results] == pytest.approx([scores.logprobs[0] for scores in expected], abs=1e-4)
    assert [greedy for _, greedy in results] == [scores.options[0].greedy for scores in expected]
    assert results[0] == pytest.approx(results[3], abs=1e-4)


def test_a_continuation_without_a_context_follows_the_end_token(lm: RekindleLM, session: rekindle.Session) -> None:
    assert lm.prefix_token_id == lm.eot_token_id == END
    ((total, _),) = lm.loglikelihood(instances("loglikelihood", ("", "word")), disable_tqdm=True)
    assert total == pytest.approx(session.score_sync(token_ids=[END], options="word").logprobs[0], abs=1e-4)


def test_what_is_too_long_loses_its_beginning(lm: RekindleLM, session: rekindle.Session) -> None:
    text = "abcdefghijklmnopqrstuvwxyz" * 4
    ((total, _),) = lm.loglikelihood(instances("loglikelihood", (text, "end")), disable_tqdm=True)
    ids = session.encode(text + "end")[-63:]
    answer = session.generate_sync(token_ids=ids, max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=60)
    assert answer.prompt_logprobs is not None
    assert total == pytest.approx(sum(score.logprob for score in answer.prompt_logprobs if score), abs=1e-4)


@pytest.mark.parametrize("length", [1, 20, 62, 63, 200])
def test_a_text_is_predicted_whole_token_by_token_once(lm: RekindleLM, session: rekindle.Session, length: int) -> None:
    text = ("The keeper wrote in a blue book. " * 7)[:length]
    (total,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)), disable_tqdm=True)
    ids, expected = [END, *session.encode(text)], []
    for first in range(0, length, lm.max_length):
        end = min(length, first + lm.max_length)
        begin = max(0, end - lm.max_length)
        window = session.perplexity_sync(token_ids=ids[begin : end + 1])
        expected += [score.logprob for score in window.logprobs[first - begin + 1 :] if score is not None]
    assert len(expected) == length
    assert total == pytest.approx(math.fsum(expected), abs=1e-3)


def test_texts_are_generated_until_what_a_task_says(lm: RekindleLM, session: rekindle.Session) -> None:
    whole = session.generate_sync(token_ids=session.encode("Hello"), max_tokens=20).text
    stop = whole[5:7]
    options: list[dict[str, Any]] = [{"until": [stop], "max_gen_toks": 20}, {"until": stop, "max_gen_toks": 3}]
    texts = lm.generate_until(instances("generate_until", *[("Hello", each) for each in options]), disable_tqdm=True)
    short = session.generate_sync(token_ids=session.encode("Hello"), max_tokens=3, stop=stop).text
    assert texts == [whole[: whole.index(stop)], short]
    with pytest.raises(rekindle.InvalidRequest, match="unknown keyword 'num_beams'"):
        lm.generate_until(instances("generate_until", ("Hello", {"num_beams": 4})), disable_tqdm=True)


def test_settings_of_an_open_session_are_not_given_again(session: rekindle.Session) -> None:
    with pytest.raises(rekindle.ConfigError, match="leave out max_running"):
        RekindleLM(session=session, batch_size=8)


def test_the_line_for_lm_evals_own_table_finds_the_model() -> None:
    ((name, target),) = re.findall(r'^ +"(\w+)": "([\w.]+:\w+)",$', GUIDE.read_text(encoding="utf-8"), re.M)
    assert name == "rekindle"
    model_registry.register("rekindle-of-the-guide", target=target)
    assert get_model("rekindle-of-the-guide") is RekindleLM


@pytest.mark.parametrize("words", [["lm-eval"], ["lm-eval", "run"]])
def test_the_command_runs_a_task(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    rows = [{"question": "The sun is", "choices": ["hot", "cold", "a very long answer"], "answer": 0}] * 3
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = {
        "task": "suns",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "data.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "suns.yaml").write_text(json.dumps(task), encoding="utf-8")
    model_args = f"pretrained={model},dtype=float32,max_context=64,precompile=lazy"
    arguments = ["--model", "rekindle", "--model_args", model_args, "--tasks", "suns", "--include_path", str(tmp_path)]
    assert main([*words, *arguments, "--output_path", str(tmp_path / "out")]) == 0
    (results,) = (tmp_path / "out").rglob("results_*.json")
    accuracy = json.loads(results.read_text(encoding="utf-8"))["results"]["suns"]["acc,none"]
    with rekindle.open_sync(model, progress=False, **SMALL) as session:
        scores = session.score_sync("The sun is", [" hot", " cold", " a very long answer"])
    assert accuracy == float(scores.best == " hot")
