"""Scripts for vLLM run with another import: its arguments, its defaults, its results."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rekindle
import rekindle.vllm
from rekindle.core.errors import InvalidRequest, ModelError
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.lora import LowRank
from rekindle.session.session import Session
from rekindle.testing import FAKE_MODEL
from rekindle.vllm import (
    LLM,
    BeamSearchParams,
    GuidedDecodingParams,
    LoRARequest,
    PoolingParams,
    RequestOutput,
    SamplingParams,
    table,
)
from rekindle.vllm import llm as llm_module
from rekindle.vllm.defaults import default_params
from rekindle.vllm.outputs import Logprob
from rekindle.vllm.prompts import illustrated, texts_or_tokens
from rekindle.vllm.searching import Search
from tests.unit.command_line import fake_opening, writing_model
from tests.unit.lora import random_parts, saved

VLLM = "0.33.0"
PUBLISHED = {
    "LLM": """model runner convert tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code
        allowed_local_media_path allowed_media_domains tensor_parallel_size dtype quantization revision
        tokenizer_revision chat_template seed gpu_memory_utilization cpu_offload_gb offload_group_size
        offload_num_in_group offload_prefetch_step offload_params enforce_eager enable_return_routed_experts
        return_sampling_mask disable_custom_all_reduce hf_token hf_overrides mm_processor_kwargs pooler_config
        structured_outputs_config profiler_config attention_config kv_cache_memory_bytes compilation_config
        quantization_config logits_processors spec_method spec_model spec_tokens""",
    "LLM.generate": """prompts sampling_params use_tqdm lora_request priority tokenization_kwargs
        mm_processor_kwargs""",
    "LLM.chat": """messages sampling_params use_tqdm lora_request priority chat_template chat_template_content_format
        add_generation_prompt continue_final_message tools chat_template_kwargs tokenization_kwargs
        mm_processor_kwargs""",
    "LLM.beam_search": "prompts params lora_request use_tqdm concurrency_limit priority",
    "LLM.enqueue": """prompts sampling_params lora_request priority use_tqdm tokenization_kwargs
        mm_processor_kwargs""",
    "LLM.enqueue_chat": """messages sampling_params use_tqdm lora_request priority chat_template
        chat_template_content_format add_generation_prompt continue_final_message tools chat_template_kwargs
        tokenization_kwargs mm_processor_kwargs""",
    "LLM.sleep": "level mode",
    "LLM.wake_up": "tags",
    "LLM.reset_prefix_cache": "reset_running_requests reset_connector",
    "LLM.wait_for_completion": "output_type use_tqdm",
    "LLM.encode": "prompts pooling_params use_tqdm lora_request pooling_task tokenization_kwargs",
    "LLM.embed": "prompts use_tqdm pooling_params lora_request tokenization_kwargs",
    "LLM.classify": "prompts pooling_params use_tqdm lora_request tokenization_kwargs",
    "LLM.score": "data_1 data_2 use_tqdm pooling_params lora_request tokenization_kwargs chat_template",
    "SamplingParams": """n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k
        min_p seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs
        prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens
        spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval skip_clone
        output_text_buffer_length structured_outputs logit_bias allowed_token_ids extra_args bad_words
        skip_reading_prefix_cache thinking_token_budget repetition_detection routed_experts_prompt_start
        trace_decode_token_ids""",
    "StructuredOutputsParams": """json regex choice grammar json_object disable_any_whitespace
        disable_additional_properties whitespace_pattern structural_tag""",
    "BeamSearchParams": """beam_width max_tokens ignore_eos temperature length_penalty include_stop_str_in_output
        structured_outputs skip_special_tokens""",
    "PoolingParams": """use_activation dimensions step_tag_id returned_token_ids task requires_token_ids
        skip_reading_prefix_cache late_interaction_params extra_kwargs output_kind late_chunking_params""",
    "LoRARequest": "lora_name lora_int_id lora_path base_model_name load_inplace is_3d_lora_weight",
}
"""The arguments of the wheel of this version, as its signatures have them."""
SCRIPT = """
from vllm import LLM, SamplingParams

# Sample prompts.
prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
# Create a sampling params object.
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    # Create an LLM.
    llm = LLM(model="facebook/opt-125m")
    # Generate texts from the prompts.
    outputs = llm.generate(prompts, sampling_params)
    # Print the outputs.
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")


if __name__ == "__main__":
    main()
"""
"""The basic example of vLLM's documentation, without its lines of dashes."""


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Open the fake device, and return the list of the settings of each opening."""
    opening, settings = fake_opening(byte_tokenizer), []

    def noted(model: str, **options: Any) -> Session:
        settings.append(options)
        kept = {name: value for name, value in options.items() if name in ("revision", "chat_template")}
        session: Session = opening(model, **kept)
        return session

    monkeypatch.setattr(llm_module, "open_sync", noted)
    return settings


@pytest.fixture
def llm(openings: list[dict[str, Any]]) -> Iterator[LLM]:
    model = LLM("fake")
    yield model
    model.close()


@pytest.mark.parametrize("owner", PUBLISHED)
def test_each_published_argument_has_an_effect(owner: str) -> None:
    assert table.VERSION == VLLM
    assert set(PUBLISHED[owner].split()) <= set(table.arguments(owner))
    names = [name for names in table.EFFECTS[owner].values() for name in names.split()]
    assert len(names) == len(set(names))


def test_the_guide_has_the_table() -> None:
    guide = Path(__file__).parents[3] / "tutorials" / "guides" / "coming_from_vllm.md"
    assert "\n".join(table.markdown()) in guide.read_text(encoding="utf-8")


class Column:
    """A column of a table, as pandas has them: neither true nor false, and no Sequence."""

    def __init__(self, *values: Any):
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        raise ValueError("the truth value of a column is ambiguous")

    def __eq__(self, other: object) -> Any:
        return np.array([value == other for value in self._values])

    __hash__ = None  # type: ignore[assignment]


class Table(Column):
    """A table: its values are the names of its columns."""

    columns = ("prompt",)


EXAMPLE_PROMPTS = [
    "Prompt: 'Hello, my name is'",
    "Prompt: 'The president of the United States is'",
    "Prompt: 'The capital of France is'",
    "Prompt: 'The future of AI is'",
]


@pytest.mark.usefixtures("openings")
def test_the_basic_example_runs_on_the_fake_device(capsys: pytest.CaptureFixture[str]) -> None:
    exec(SCRIPT.replace("from vllm", "from rekindle.vllm"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(", Generated.*", "", line) for line in lines] == EXAMPLE_PROMPTS


@pytest.mark.wide
def test_the_basic_example_runs_but_for_its_import(families: Path, tmp_path: Path) -> None:
    model = writing_model(families, tmp_path / "tiny")
    script = SCRIPT.replace("from vllm", "from rekindle.vllm").replace("facebook/opt-125m", model)
    assert len(SCRIPT.splitlines()) == len(script.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [re.sub(", Generated.*", "", line) for line in lines] == EXAMPLE_PROMPTS


def test_defaults_and_results_are_those_of_vllm(llm: LLM) -> None:
    (output,) = llm.generate("Hello", use_tqdm=False)
    (sample,) = output.outputs
    assert (output.prompt, output.prompt_token_ids) == ("Hello", llm.get_tokenizer().encode("Hello"))
    assert (len(sample.token_ids), sample.finish_reason, sample.stop_reason) == (16, "length", None)
    assert sample.text == llm.get_tokenizer().decode(sample.token_ids)
    assert (sample.logprobs, sample.cumulative_logprob, output.prompt_logprobs) == (None, None, None)
    assert SamplingParams().options["temperature"] == 1


def test_a_run_is_repeatable_by_the_seed_and_a_request_by_its_own(openings: list[Any]) -> None:
    texts = []
    for seed in (0, 0, 1):
        model = LLM("fake", seed=seed)
        outputs = model.generate(["A", "A"], SamplingParams(n=2), use_tqdm=False)
        texts.append([sample.token_ids for output in outputs for sample in output.outputs])
        own = [model.generate("A", SamplingParams(seed=7), use_tqdm=False)[0].outputs[0].token_ids for _ in range(2)]
        assert own[0] == own[1]
        model.close()
    assert texts[0] == texts[1] != texts[2]
    assert len({tuple(each) for each in texts[0]}) == 4


def test_prompts_have_all_forms_and_each_its_parameters(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hi")
    for one in ("Hi", ids, {"prompt": "Hi"}, {"prompt_token_ids": ids}):
        (output,) = llm.generate(one, SamplingParams(temperature=0), use_tqdm=False)
        assert output.prompt_token_ids == ids
    params = [SamplingParams(max_tokens=tokens) for tokens in (1, 3)]
    outputs = llm.generate(["A", {"prompt_token_ids": ids}], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 3]
    assert [output.prompt for output in outputs] == ["A", None]
    with pytest.raises(InvalidRequest, match="one for each of 1 prompts; got 2"):
        llm.generate("A", params)
    with pytest.raises(InvalidRequest, match="images alone here, got 'audio' too"):
        llm.generate({"prompt": "A", "multi_modal_data": {"audio": []}})
    with pytest.raises(InvalidRequest, match="got a prompt with images too"):
        llm.embed({"prompt": "A", "multi_modal_data": {"image": [b""]}})
    with pytest.raises(ValueError, match="tokens"):
        llm.generate(["A", "x" * 99_999], use_tqdm=False)


def test_logprobs_are_by_token_id(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("Hello", params, use_tqdm=False)
    (sample,) = output.outputs
    assert sample.logprobs is not None
    assert sample.cumulative_logprob == sum(
        each[token].logprob for token, each in zip(sample.token_ids, sample.logprobs, strict=True)
    )
    assert all(2 <= len(each) <= 3 for each in sample.logprobs)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_stops_say_why(llm: LLM) -> None:
    first = llm.generate("Hello", SamplingParams(temperature=0), use_tqdm=False)[0].outputs[0]
    params = SamplingParams(temperature=0, stop_token_ids=[first.token_ids[2]])
    sample = llm.generate("Hello", params, use_tqdm=False)[0].outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", sample.token_ids[-1])


def test_chats_are_rendered_and_constraints_hold(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    outputs = llm.chat([messages, messages], SamplingParams(max_tokens=2), use_tqdm=False)
    assert [output.prompt for output in outputs] == ["<user>Hi"] * 2
    assert llm.chat(messages, use_tqdm=False)[0].prompt == "<user>Hi"
    assert llm.get_tokenizer().apply_chat_template(messages, tokenize=False) == "<user>Hi"
    assert GuidedDecodingParams(json='{"type": "integer"}').options == {"json_schema": {"type": "integer"}}
    old = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["a", "b"]))
    assert old.options["choice"] == ["a", "b"]
    with pytest.raises(InvalidRequest, match="takes one of json, regex"):
        _ = GuidedDecodingParams(regex="a", choice=["a"]).options


def test_enqueued_prompts_run_until_they_are_waited_for(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3)
    (before,) = llm.generate("A", params, use_tqdm=False)
    assert llm.enqueue(["A", "B"], params) == ["1", "2"]
    assert llm.enqueue("C", params) == ["3"]
    with pytest.raises(TypeError, match="are RequestOutput"):
        llm.wait_for_completion(str)
    outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [output.request_id for output in outputs] == ["1", "2", "3"]
    assert outputs[0].outputs == before.outputs
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_beam_of_one_is_greedy_and_a_wide_one_finds_no_worse(llm: LLM) -> None:
    greedy = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=4, logprobs=0), use_tqdm=False)[0]
    (narrow, other), (wide,) = (
        llm.beam_search(prompts, BeamSearchParams(beam_width=width, max_tokens=4, ignore_eos=True))
        for width, prompts in ((1, ["Hello", "Other"]), (4, ["Hello"]))
    )
    (sequence,) = narrow.sequences
    prompt = list(greedy.prompt_token_ids)
    assert sequence.tokens == [*prompt, *greedy.outputs[0].token_ids]
    assert sequence.cum_logprob == pytest.approx(greedy.outputs[0].cumulative_logprob)
    assert sequence.text == llm.get_tokenizer().decode(sequence.tokens, skip_special_tokens=True)
    assert len(sequence.logprobs) == 4
    totals = [each.cum_logprob for each in wide.sequences]
    assert len({tuple(each.tokens) for each in wide.sequences}) == 4
    assert totals == sorted(totals, reverse=True)
    assert totals[0] >= sequence.cum_logprob
    limited = llm.beam_search(["Hello", "Other"], BeamSearchParams(1, 4, ignore_eos=True), concurrency_limit=1)
    assert [each.sequences[0].tokens for each in limited] == [each.sequences[0].tokens for each in (narrow, other)]


def test_a_beam_keeps_the_likeliest_of_all_and_ends_at_end_tokens() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3, length_penalty=0.0)
    search = Search([7], params, frozenset({0}), None, 0)
    search.advance([{1: Logprob(-1.0), 2: Logprob(-2.0), 0: Logprob(-0.5), 3: Logprob(-9.0)}])
    assert [beam.tokens for beam in search.beams] == [(7, 1), (7, 2)]
    search.advance([{1: Logprob(-5.0), 4: Logprob(-6.0)}, {5: Logprob(-0.25), 6: Logprob(-0.5)}])
    assert [(beam.tokens, beam.total) for beam in search.beams] == [((7, 2, 5), -2.25), ((7, 2, 6), -2.5)]
    best = search.result(SimpleNamespace(tokenizer=None)).sequences  # type: ignore[arg-type]
    assert [(each.tokens, each.cum_logprob) for each in best] == [([7, 0], -0.5), ([7, 2, 5], -2.25)]
    longer = Search([7], BeamSearchParams(2, 3, length_penalty=2.0), frozenset({0}), None, 0)
    longer.advance([{1: Logprob(-1.0), 0: Logprob(-0.9)}])
    longer.advance([{1: Logprob(-1.0), 2: Logprob(-3.0)}])
    best = longer.result(SimpleNamespace(tokenizer=None)).sequences  # type: ignore[arg-type]
    assert [each.tokens for each in best] == [[7, 1, 1], [7, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LLM("fake", hf_overrides={"a": 1}), "LLM.hf_overrides=.*would change answers"),
        (lambda: LLM("fake", quantization="fp8"), "quantize='int8'"),
        (lambda: LLM("fake", dtype="float8"), "dtype must be one of auto, float32"),
        (lambda: LLM("fake", max_model_length=5), "LLM has no argument 'max_model_length'"),
        (lambda: SamplingParams(logprob_token_ids=[1]), "SamplingParams.logprob_token_ids="),
        (lambda: BeamSearchParams(2, 4, temperature=1.0), "BeamSearchParams.temperature=1.0"),
        (lambda: BeamSearchParams(0, 4), "beam_width and max_tokens must be at least 1"),
        (lambda: PoolingParams(step_tag_id=3), "PoolingParams.step_tag_id=3"),
        (lambda: LoRARequest("a", 1, "path", is_3d_lora_weight=True), "LoRARequest.is_3d_lora_weight=True"),
        (lambda: LoRARequest("a", 0, "path"), "lora_int_id must be at least 1"),
        (lambda: LoRARequest("a", 1), "lora_path the path of a directory"),
        (lambda: SamplingParams(n=0), "n must be an integer from 1"),
        (lambda: SamplingParams(max_tokens=0), "max_tokens must be at least 1"),
        (lambda: SamplingParams(min_tokens=4, max_tokens=3), "at least min_tokens, got 3 and 4"),
        (lambda: SamplingParams(temperature=-1), "temperature must be a finite number of at least 0"),
        (lambda: SamplingParams(structured_outputs=cast(Any, "json")), "must be StructuredOutputsParams, got 'json'"),
        (lambda: GuidedDecodingParams(json="{"), "must be a JSON schema, got text"),
        (lambda: LLM("fake", generation_config="/no/such"), '"vllm" or the path of a directory with generation_config'),
    ],
)
def test_what_would_change_answers_raises(make: Any, message: str, openings: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()
    assert openings == []


def test_drafts_by_n_grams_are_drafts_by_lookup(openings: list[Any]) -> None:
    LLM("fake", speculative_config={"method": "ngram", "num_speculative_tokens": 4}).close()
    assert openings[-1]["draft"] == "lookup"
    LLM("fake", speculative_config={"method": "deepseek_mtp", "num_speculative_tokens": 1}).close()
    assert openings[-1]["draft"] == "mtp"
    with pytest.warns(UserWarning, match="speculative_config=.*no effect here"):
        LLM("fake", speculative_config={"method": "eagle"}).close()
    assert "draft" not in openings[-1]


def test_what_concerns_speed_is_told_once(openings: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_noted", set())
    with pytest.warns(UserWarning, match="LLM: gpu_memory_utilization, enforce_eager change no answer, and have"):
        model = LLM("fake", gpu_memory_utilization=0.5, enforce_eager=True, max_model_len=128, tensor_parallel_size=2)
    assert openings == [{"revision": None, "chat_template": None, "max_context": 128, "tensor": 2}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM("fake", enforce_eager=True, hf_overrides=None).close()
    model.close()


def test_the_bar_is_tqdm_or_what_was_given(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    model: list[dict[str, Any]] = []

    def bar(jobs: Any, **options: Any) -> Any:
        model.append(options)
        return jobs

    llm.generate(["A", "B"], use_tqdm=bar)
    assert [options["total"] for options in model] == [2]
    llm.generate(["A", "B"])
    assert "Processed prompts" in capsys.readouterr().err
    llm.generate("A", use_tqdm=False)
    assert capsys.readouterr().err == ""


@pytest.mark.anyio
async def test_it_blocks_where_a_loop_runs(llm: LLM) -> None:
    assert len(llm.generate(["A", "B"], use_tqdm=False)) == 2


def test_it_has_embeddings_and_refuses_the_rest(llm: LLM) -> None:
    outputs = llm.embed(["Hello", "Hello", "Other"], use_tqdm=False)
    vectors = [list(output.outputs.embedding) for output in outputs]
    own = llm.session.embed_sync(["Hello", "Hello", "Other"], instruction="", progress=False)
    assert vectors == own.tolist()
    assert outputs[0].prompt_token_ids == llm.get_tokenizer().encode("Hello")
    encoded = llm.encode(["Hello", "Other"], use_tqdm=False, pooling_task="embed")
    assert [output.outputs.data.tolist() for output in encoded] == [vectors[0], vectors[2]]
    assert encoded[0].prompt_token_ids == outputs[0].prompt_token_ids
    with pytest.raises(InvalidRequest, match='must be "embed" or "classify" here, got \'token_embed\''):
        llm.encode("Hello", pooling_task="token_embed")
    scores = [each.outputs.score for each in llm.score("Hello", ["Hello", "Other"], use_tqdm=False)]
    assert scores[0] == pytest.approx(1)
    assert scores[1] == pytest.approx(sum(a * b for a, b in zip(vectors[0], vectors[2], strict=True)), abs=1e-5)
    with pytest.raises(InvalidRequest, match="one text and several"):
        llm.score(["a", "b"], ["c"])
    with pytest.raises(InvalidRequest, match="no head that classifies"):
        llm.classify("Hello")
    with pytest.raises(InvalidRequest, match="level must be 1 or 2"):
        llm.sleep(level=0)
    with pytest.raises(InvalidRequest, match="tags must be among weights, kv_cache, scheduling, got 'weight'"):
        llm.wake_up(["weight"])
    assert llm.wake_up(["weights"]), "trl wakes the parts of an awake model, one after the other"


def test_rekindle_does_not_import_it() -> None:
    code = "import rekindle, sys; assert not {'rekindle.session.tunix', 'rekindle.vllm', 'tunix'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert rekindle.__version__


@pytest.mark.wide
def test_it_blocks_in_a_cell_with_a_running_loop_and_sleeps_and_has_adapters(families: Path, tmp_path: Path) -> None:
    one = np.ones((1, 1), np.float32)
    adapter = saved(tmp_path / "adapter", {"model.layers.0.self_attn.q_proj": LowRank(one, one, 1.0)})

    async def cell() -> None:
        model = LLM(writing_model(families, tmp_path / "tiny"), max_model_len=128, max_num_seqs=2)
        greedy = SamplingParams(temperature=0, max_tokens=4)
        before = model.generate(["Hello", "Other"], greedy, use_tqdm=False)
        model.sleep()
        assert model.session.asleep
        assert model.wake_up()
        assert [each.outputs for each in model.generate(["Hello", "Other"], greedy, use_tqdm=False)] == [
            each.outputs for each in before
        ]
        with pytest.raises(ModelError):
            model.generate("Hello", lora_request=LoRARequest("a", 1, str(adapter)), use_tqdm=False)
        model.close()

    asyncio.run(cell())


def test_several_prompts_come_in_any_form(llm: LLM) -> None:
    """Compare iterators, arrays and columns with the list of the same prompts, in all methods."""
    texts, ids = ["A", "B", "C"], [[65], [66], [67]]
    forms = [iter(texts), (text for text in texts), map(str, texts), tuple(texts), np.array(texts), Column(*texts)]
    forms += [np.array(texts, object), dict(enumerate(texts)).values(), dict.fromkeys(texts).keys(), deque(texts)]
    for form in forms:
        assert texts_or_tokens(form) == texts
    greedy = SamplingParams(temperature=0, max_tokens=2)
    expected = [output.outputs for output in llm.generate(texts, greedy, use_tqdm=False)]
    assert [output.outputs for output in llm.generate(iter(texts), greedy, use_tqdm=False)] == expected
    for tokens in (iter(ids), np.array(ids), [np.array(each) for each in ids], [tuple(each) for each in ids]):
        assert texts_or_tokens(tokens) == ids
    for one in (np.array([65, 66]), (65, 66), Column(65, 66), iter([65, 66]), [np.int64(65), np.int32(66)]):
        assert texts_or_tokens(one) == [[65, 66]]
    assert texts_or_tokens(iter(())) == texts_or_tokens([]) == []
    llm.enqueue(iter(texts), greedy)
    assert [output.outputs for output in llm.wait_for_completion(use_tqdm=False)] == expected
    (beams, others) = (llm.beam_search(form, BeamSearchParams(1, 2)) for form in (iter(texts), texts))
    assert beams == others
    vectors = [each.outputs.embedding for each in llm.embed(texts, use_tqdm=False)]
    assert [each.outputs.embedding for each in llm.embed(iter(texts), use_tqdm=False)] == vectors
    assert len(llm.encode(iter(texts), pooling_task="embed", use_tqdm=False)) == 3
    assert len(llm.score(iter(["A"]), Column(*texts), use_tqdm=False)) == 3
    chats = [[{"role": "user", "content": text}] for text in texts]
    for conversations in (iter(chats), (iter(chat) for chat in chats)):
        outputs = llm.chat(conversations, greedy, use_tqdm=False)
        assert [output.prompt for output in outputs] == ["<user>A", "<user>B", "<user>C"]
    assert llm.chat(iter(chats[0]), greedy, use_tqdm=False)[0].prompt == "<user>A"
    every: Any = (SamplingParams(max_tokens=count, temperature=0) for count in (1, 2, 3))
    assert [len(each.outputs[0].token_ids) for each in llm.generate(texts, every, use_tqdm=False)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (Table("prompt"), "one column of a table"),
        (b"A", "prompts must be a list, an iterator, an array or a column, got b'A'"),
        (7, "prompts must be a list"),
        (["A", None], "prompt 1 must be a text or token ids, got None"),
        (Column("A", float("nan")), "prompt 1 must be a text or token ids, got nan"),
        ([{"prompt": "A", "prompt_embeds": [1]}], "prompt 0 has 'prompt_embeds', which has no equivalent"),
        ([{"prompt": "A", "multi_modal_data": [1]}], "multi_modal_data must be a mapping"),
    ],
)
def test_what_is_no_prompt_says_so(prompts: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        illustrated(prompts)


def test_a_wrong_kind_of_parameters_says_so(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="sampling_params must be a list, an iterator"):
        llm.generate("A", {"temperature": 0})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="lora_request must be of LoRARequest, or a list of them; got 'sql'"):
        llm.generate(["A"], lora_request=["sql"])  # type: ignore[list-item]
    params = SamplingParams()
    params.logprob_token_ids = [1]
    with pytest.raises(InvalidRequest, match=r"logprob_token_ids=\[1\]\) would change answers"):
        llm.generate("A", params)


def test_adapters_are_known_by_their_files(llm: LLM, tmp_path: Path) -> None:
    """Ask with adapters saved anew at their path, with an equal name, and with more than there is room for."""

    def save(name: str, seed: int) -> str:
        return str(saved(tmp_path / name, random_parts(FAKE_MODEL, seed=seed)))

    def digest(lora: LoRARequest) -> str:
        (output,) = llm.generate("A", SamplingParams(max_tokens=1), lora_request=lora, use_tqdm=False)
        assert output.lora_request is lora
        name = llm._adapters.name_of(lora)
        assert name is not None
        return llm.session.adapters[name].digest

    path = save("policy", 1)
    first = digest(LoRARequest("policy", 1, path))
    assert digest(LoRARequest("policy", 2, path)) == first, "its files are the same"
    assert list(llm.session.adapters) == ["policy"]
    shutil.rmtree(path)
    assert digest(LoRARequest("policy", 2, path)) == first, "its files are gone, and were read"
    save("policy", 2)
    second = digest(LoRARequest("policy", 3, path))
    assert second != first
    assert list(llm.session.adapters) == ["policy"]
    save("policy", 3)
    assert digest(LoRARequest("policy", 3, path)) not in (first, second), "its number is that of before"
    other = LoRARequest("policy", 4, save("other", 4))
    assert digest(other) != digest(LoRARequest("policy", 3, path))
    assert list(llm.session.adapters) == ["policy", "policy#4"]
    for number in range(5, 5 + llm._adapters.room):
        digest(LoRARequest(f"adapter {number}", number, save(str(number), number)))
    assert len(llm.session.adapters) == llm._adapters.room
    assert not {"policy", "policy#4"} & llm.session.adapters.keys()
    every = [LoRARequest(f"adapter {number}", number, str(tmp_path / str(number))) for number in (5, 6, 7, 8, 9, 10)]
    every = [each for each in every if Path(each.lora_path).exists()] + [LoRARequest("policy", 3, path), other]
    outputs = llm.generate(["A"] * len(every), SamplingParams(max_tokens=1), lora_request=every, use_tqdm=False)
    assert [output.lora_request for output in outputs] == every


def test_defaults_are_those_of_a_generation_config(tmp_path: Path, openings: list[Any]) -> None:
    """Compare with vLLM's `get_diff_sampling_param`, which never reads `do_sample`."""
    entries: dict[str, Any] = {
        "do_sample": False,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "max_new_tokens": 7,
    }
    entries |= {"repetition_penalty": 1.1, "min_new_tokens": 5, "bad_words_ids": [[1]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(entries), encoding="utf-8")
    expected = SamplingParams(
        temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, max_tokens=7, repetition_penalty=1.1, min_tokens=0
    )
    assert default_params(entries, None) == expected
    assert default_params({"do_sample": True}, None) == default_params({}, {}) == SamplingParams()
    assert default_params({"temperature": None, "top_k": 0}, {"max_new_tokens": 3}) == SamplingParams(max_tokens=3)
    with pytest.raises(InvalidRequest, match="the defaults of sampling are invalid: temperature"):
        default_params({"temperature": "hot"}, None)
    with pytest.warns(UserWarning, match="no effect by do_sample, as in vLLM"):
        assert default_params({}, {"do_sample": False}) == SamplingParams()
    model = LLM("fake", generation_config=str(tmp_path), override_generation_config={"max_new_tokens": 3})
    params = model.get_default_sampling_params()
    assert params == replace(expected, max_tokens=3)
    params.max_tokens = 9
    assert len(model.generate("A", use_tqdm=False)[0].outputs[0].token_ids) == 3
    model.close()
    assert len(openings) == 1


def test_a_sleeping_model_says_so_in_each_method(llm: LLM) -> None:
    chat = [{"role": "user", "content": "A"}]
    params = SamplingParams(max_tokens=1)
    for call in (
        lambda: llm.generate("A", params),
        lambda: llm.chat(chat, params),
        lambda: llm.enqueue("A", params),
        lambda: llm.beam_search("A", BeamSearchParams(1, 1)),
        lambda: llm.embed("A"),
        lambda: llm.encode("A", pooling_task="embed"),
        lambda: llm.classify("A"),
        lambda: llm.score("A", "B"),
    ):
        llm.sleep()
        with pytest.raises(InvalidRequest, match=r"the model sleeps: call llm.wake_up\(\)"):
            call()
    llm.wake_up()
    llm.enqueue("A", params)
    assert len(llm.wait_for_completion(use_tqdm=False)) == 1


def test_a_reset_prefix_cache_has_no_prefix(llm: LLM) -> None:
    prompt, params = "A" * 200, SamplingParams(max_tokens=1)
    cached = [llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert cached[0] == 0 < (cached[1] or 0)
    assert llm.reset_prefix_cache()
    again = [llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert again == cached
    salted = {"prompt": prompt, "cache_salt": "own"}
    assert [llm.generate(salted, params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)] == cached


def test_parameters_and_results_are_objects_of_scripts(llm: LLM) -> None:
    params = SamplingParams(stop="x", stop_token_ids=(1, 1), logprobs=True, seed=-1, thinking_token_budget=-1)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (["x"], [1], [])
    assert (params.logprobs, params.seed, params.thinking_token_budget) == (1, None, None)
    copy = params.clone()
    assert copy == params
    assert copy is not params
    assert copy.stop is not params.stop
    copy.skip_clone = True
    assert copy.clone().stop is copy.stop
    optional = SamplingParams.from_optional(temperature=None, top_p=None, n=None, logit_bias={"3": 500, 4: -1})
    assert optional == SamplingParams(logit_bias={3: 100, 4: -1})
    with pytest.raises(TypeError, match="max_token"):
        SamplingParams.from_optional(max_token=3)
    form = SamplingParams(structured_outputs={"choice": ["a", "b"]}, max_tokens=2)
    assert isinstance(form.structured_outputs, GuidedDecodingParams)
    (output,) = llm.generate("A", form, use_tqdm=False)
    assert output.outputs[0].text in ("a", "b")
    assert output.metrics is not None
    assert output.metrics.queued_ts <= output.metrics.first_token_ts <= output.metrics.last_token_ts
    assert output.metrics.num_generation_tokens == len(output.outputs[0].token_ids)
    output.outputs[0].text += "!"
    output.outputs[0].token_ids.append(0)
    output.reward = 1.0  # type: ignore[attr-defined]
    assert output.outputs[0].finished()
    assert (output.encoder_prompt, output.outputs[0].routed_experts) == (None, None)


def test_members_without_an_equivalent_name_another_way(llm: LLM) -> None:
    assert not hasattr(llm, "llm_engine")
    for name, remedy in table.ABSENT.items():
        with pytest.raises(AttributeError, match=re.escape(f"LLM has no {name!r} here: {remedy}")):
            getattr(llm, name)
    with pytest.raises(AttributeError, match="LLM has no 'no_such'"):
        _ = llm.no_such


def test_a_grammar_may_be_gbnf(llm: LLM) -> None:
    """Follow vLLM's example of structured outputs."""
    grammar = 'root ::= "SELECT " column\ncolumn ::= "a" | "b"'
    params = SamplingParams(structured_outputs=GuidedDecodingParams(grammar=grammar), max_tokens=20)
    assert llm.generate("A", params, use_tqdm=False)[0].outputs[0].text in ("SELECT a", "SELECT b")
    assert GuidedDecodingParams(grammar='start: "a"').options == {"grammar": 'start: "a"'}
    with pytest.raises(InvalidRequest, match="cannot be read as GBNF"):
        GuidedDecodingParams(grammar="root ::= (")


def test_names_of_vllm_are_at_their_places_or_name_another_way() -> None:
    from rekindle.vllm import RequestOutputKind, TokensPrompt
    from rekindle.vllm.inputs import TextPrompt
    from rekindle.vllm.lora.request import LoRARequest as Request
    from rekindle.vllm.outputs import RequestOutput as Output
    from rekindle.vllm.sampling_params import SamplingParams as Params

    assert (Request, Output, Params) == (LoRARequest, RequestOutput, SamplingParams)
    prompts = [TextPrompt(prompt="A"), TokensPrompt(prompt_token_ids=[65])]
    assert [content for content, _ in illustrated(prompts)] == ["A", [65]]
    table._noted.clear()
    with pytest.warns(UserWarning, match="output_kind changes no answer"):
        SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)
    for name, remedy in table.ABSENT_NAMES.items():
        with pytest.raises(ImportError, match=re.escape(f"rekindle.vllm has no {name!r}: {remedy}")):
            getattr(rekindle.vllm, name)
    assert not hasattr(rekindle.vllm, "no_such")


def test_token_ids_come_by_their_earlier_name(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    expected = llm.generate([{"prompt_token_ids": [65]}, {"prompt_token_ids": [66]}], params, use_tqdm=False)
    outputs = llm.generate(prompt_token_ids=[[65], [66]], sampling_params=params, use_tqdm=False)
    assert [output.outputs for output in outputs] == [output.outputs for output in expected]
    wrong: list[dict[str, Any]] = [{}, {"prompts": "A", "prompt_token_ids": [65]}]
    for arguments in wrong:
        with pytest.raises(InvalidRequest, match="takes prompts, or prompt_token_ids in their place"):
            llm.generate(**arguments)


def test_log_probabilities_are_processed_by_the_mode_of_the_llm(openings: list[Any]) -> None:
    every = [SamplingParams(logprobs=1), SamplingParams()]
    for mode, expected in (("raw_logprobs", "model"), ("processed_logprobs", "sampled")):
        model = LLM("fake", logprobs_mode=mode)
        jobs = model._plain_jobs(["A", "B"], every, None, None)
        assert [job.keywords.get("logprobs_of") for job in jobs] == [expected, None]
        model.close()
    with pytest.raises(InvalidRequest, match="must be one of raw_logprobs, processed_logprobs here"):
        LLM("fake", logprobs_mode="raw_logits")


def test_a_chat_has_a_template_of_its_own_or_is_enqueued(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    greedy = SamplingParams(temperature=0, max_tokens=2)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ note }}"
    arguments: dict[str, Any] = {"chat_template": template, "chat_template_kwargs": {"note": "!"}}
    (output,) = llm.chat(messages, greedy, use_tqdm=False, **arguments)
    assert output.prompt == "[user]Hi!"
    assert output.prompt_token_ids == llm.get_tokenizer().encode("[user]Hi!")
    with pytest.raises(InvalidRequest, match="no place for images"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "x.png"}]}], **arguments)
    (plain,) = llm.chat(messages, greedy, use_tqdm=False)
    llm.enqueue_chat(messages, greedy)
    (waited,) = llm.wait_for_completion(use_tqdm=False)
    assert waited.outputs == plain.outputs
    with pytest.raises(InvalidRequest, match="continue_final_message=True needs add_generation_prompt=False"):
        llm.chat(messages, greedy, continue_final_message=True)


def test_scripts_of_reinforcement_learning_wake_in_parts(llm: LLM) -> None:
    """Follow trl: the model sleeps after it openings, weights wake for new ones, pages for rollouts."""
    llm.sleep(level=2)
    assert llm.wake_up(tags=["weights"])
    assert llm.wake_up(tags=["kv_cache"])
    assert llm.reset_prefix_cache()
    assert len(llm.generate("A", SamplingParams(n=2, max_tokens=1), use_tqdm=False)[0].outputs) == 2


@pytest.mark.parametrize(("ignores", "reason"), [(False, None), (True, 66)])
def test_an_end_token_among_the_stop_tokens_is_no_reason_to_stop(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, ignores: bool, reason: int | None
) -> None:
    """Follow `check_stop` of vLLM: the end token of the tokenizer comes first, unless it is ignored."""
    monkeypatch.setattr(llm._runner, "_ends", frozenset({66}))
    params = SamplingParams(allowed_token_ids=[66], stop_token_ids=[66], ignore_eos=ignores)
    (output,) = llm.generate("A", params, use_tqdm=False)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", reason)


@pytest.mark.parametrize("temperature", [0, 0.0, 5e-324, 1e-8, 9.9e-6])
def test_a_tiny_temperature_is_greedy(llm: LLM, temperature: float) -> None:
    outputs = llm.generate("A", [SamplingParams(temperature=each) for each in (temperature,)], use_tqdm=False)
    greedy = llm.generate("A", SamplingParams(temperature=0), use_tqdm=False)
    assert outputs[0].outputs == greedy[0].outputs
