"""An `LLM` over real models: heads, similarities and adapters give what the session gives."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.core.errors import InvalidRequest
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.vllm import LLM, LoRARequest, PoolingParams, SamplingParams
from tests.engine.pictured import GOLDEN, NUMBERS, messages_of
from tests.sentence_models import classifier, embedding_model
from tests.unit.command_line import TEMPLATE, writing_model
from tests.unit.lora import random_parts, saved

SMALL: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 2}
TEXTS = ["A cat.", "A dog."]


@pytest.mark.wide
@pytest.mark.parametrize("labels", [3, 1])
def test_classes_and_scores_are_those_of_the_session(families: Path, tmp_path: Path, labels: int) -> None:
    head = classifier(families / "llama-tied", tmp_path / "model", labels)
    llm = LLM(str(tmp_path / "model"), **SMALL)
    states = llm.session.embed_sync(TEXTS, pooling="last", normalize=False, progress=False)
    plain = llm.classify(TEXTS, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    np.testing.assert_allclose([each.outputs.probs for each in plain], states @ head.T, atol=1e-4)
    outputs = llm.classify(TEXTS, use_tqdm=False)
    own = llm.session.classify_sync(TEXTS, progress=False)
    for output, expected in zip(outputs, own, strict=True):
        assert output.outputs.probs == list(expected.probabilities)
        assert output.outputs.num_classes == labels
    llm.close()


@pytest.mark.wide
def test_a_reranker_scores_pairs_by_its_head(families: Path, tmp_path: Path) -> None:
    classifier(families / "llama-tied", tmp_path / "model", 1)
    settings = {"eos_token": "<end>", "chat_template": TEMPLATE}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    llm = LLM(str(tmp_path / "model"), **{**SMALL, "max_model_len": 512})
    expected = [llm.session.rerank_sync(query, ["A pet."], progress=False).scores[0] for query in TEXTS]
    outputs = llm.score(TEXTS, ["A pet.", "A pet."], use_tqdm=False)
    assert [each.outputs.score for each in outputs] == expected
    several = llm.score(TEXTS[0], ["A pet.", "A car."], use_tqdm=False)
    assert several[0].outputs.score == expected[0]
    llm.close()


@pytest.mark.wide
def test_vectors_follow_their_parameters(families: Path, tmp_path: Path) -> None:
    llm = LLM(str(embedding_model(families / "qwen3-embed", tmp_path / "model")), **SMALL)
    expected = llm.session.embed_sync(TEXTS, instruction="", dimensions=8, normalize=False, progress=False)
    params = PoolingParams(dimensions=8, use_activation=False)
    outputs = llm.embed(TEXTS, pooling_params=params, use_tqdm=False)
    np.testing.assert_array_equal([each.outputs.embedding for each in outputs], expected)
    assert outputs[0].outputs.hidden_size == 8
    rows = llm.session.embed_sync(TEXTS, instruction="", normalize=True, progress=False)
    (score,) = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)
    assert score.outputs.score == pytest.approx(float(rows[0] @ rows[1]), abs=1e-6)
    llm.close()


@pytest.fixture
def writing(families: Path, tmp_path: Path) -> Iterator[LLM]:
    llm = LLM(writing_model(families, tmp_path / "model"), max_loras=2, enable_lora=True, **SMALL)
    yield llm
    llm.close()


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:LLM. enable_lora changes no answer")
def test_each_prompt_may_have_its_adapter(writing: LLM, families: Path, tmp_path: Path) -> None:
    config = open_checkpoint(families / "llama-tied").config
    path = str(saved(tmp_path / "adapter", random_parts(config)))
    params, lora = SamplingParams(temperature=0, max_tokens=6, logprobs=0), LoRARequest("sql", 1, path)
    plain, adapted = writing.generate(["Hello", "Hello"], params, lora_request=[None, lora], use_tqdm=False)
    own = writing.session.generate_sync("Hello", adapter="sql", temperature=0, max_tokens=6, logprobs=0)
    assert tuple(adapted.outputs[0].token_ids) == own.token_ids
    assert adapted.outputs[0].cumulative_logprob != plain.outputs[0].cumulative_logprob
    assert (adapted.lora_request, plain.lora_request) == (lora, None)
    assert list(writing.session.adapters) == ["sql"]
    again = writing.generate("Hello", params, lora_request=lora, use_tqdm=False)
    assert again[0].outputs == adapted.outputs


@pytest.mark.wide
def test_images_give_the_tokens_of_transformers() -> None:
    llm = LLM(str(GOLDEN), dtype="float32", max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    image = (GOLDEN / "image-0.png").read_bytes()
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    (message,) = messages_of(0)
    parts = [
        {"type": "image_url", "image_url": {"url": url}} if part["type"] == "image" else part
        for part in message["content"]
    ]
    (chat,) = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
    text = llm.session.render([{"role": "user", "content": parts[::2]}]).replace("this: ", "this: <image>")
    (plain,) = llm.generate({"prompt": text, "multi_modal_data": {"image": image}}, params, use_tqdm=False)
    for output in (chat, plain):
        assert output.outputs[0].token_ids == NUMBERS["0_greedy_new"].tolist()
    with pytest.raises(InvalidRequest, match="images alone here, got 'video'"):
        llm.generate({"prompt": "a", "multi_modal_data": {"video": image}}, params)
    llm.close()
