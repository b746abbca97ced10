"""What a model's files have is data: nothing outside is read, nothing runs without an end, each error is Rekindle's."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.core.errors import CheckpointError, InvalidRequest, ModelNotFound, RekindleError
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.request.constraint import regex
from rekindle.core.text.grammar import Compiler
from rekindle.formats import patterns
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.peft import read_adapter
from rekindle.formats.families.coordinates import with_sections
from rekindle.formats.families.registry import parse_config
from rekindle.formats.rendering import sandbox
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.responses.contents import Malformed, parse
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.template import load
from tests.gguf_models.files import write_model
from tests.unit.formats.test_checkpoint_huggingface import Copy, copy, edit  # noqa: F401
from tests.unit.lora import config_of, random_parts, tensors_of

ENDLESS = r"(?:[a-z_.0-9]|[a-z_.0-9]{2})+[^a-z_.0-9]"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 1234567\n"
DEEP = "[" * 100_000
GOLDENS = Path(__file__).parents[2] / "goldens"


@pytest.fixture
def directory(copy: Copy) -> Path:  # noqa: F811
    directory = copy("qwen3")
    shutil.copy(GOLDENS / "vision" / "smolvlm" / "tokenizer.json", directory)
    return directory


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let patterns end after a hundredth of a second."""
    for module in ("patterns", "responses.delimiters", "responses.contents"):
        monkeypatch.setattr(f"rekindle.formats.{module}.SECONDS", 0.01)


@pytest.mark.parametrize(
    "name", ["../private/{}", "{0}/../../private/{0}", "/{}", "C:\\{}", "..\\{}", "\\\\a\\{}", "a\0{}"]
)
def test_an_index_names_no_file_outside_of_its_directory(directory: Path, name: str) -> None:
    private = directory.parent / "private"
    private.mkdir()
    weights = (directory / "model.safetensors").rename(private / "weights.safetensors")
    place = str(weights) if name == "/{}" else name.format("weights.safetensors")
    index = {"weight_map": dict.fromkeys(load_file(weights), place)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="is outside of the model's directory"):
        open_checkpoint(directory)


@pytest.mark.parametrize("kind", ["Pooling", "Dense", "Transformer", "LogitScore"])
def test_modules_are_in_the_directory(directory: Path, kind: str) -> None:
    modules = [{"type": "a.Transformer", "path": ""}, {"type": f"a.{kind}", "path": "../other"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules.json: '../other' is outside"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "model-00001-of-00001.safetensors",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "modules.json",
        "decision.json",
        "decision_template.jinja",
        "preprocessor_config.json",
    ],
)
def test_a_link_to_a_file_that_is_gone_is_told_with_its_name(directory: Path, name: str) -> None:
    path = directory / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if "-of-" in name:
        (directory / "model.safetensors").unlink()
    if name == "tokenizer.model":
        (directory / "tokenizer.json").unlink()
    path.symlink_to("../blobs/gone")
    with pytest.raises(CheckpointError, match=f"{path.name} is a link to ../blobs/gone, which is gone"):
        open_checkpoint(directory)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_told_with_its_cure(directory: Path, name: str) -> None:
    (directory / name).write_text(POINTER)
    with pytest.raises(CheckpointError, match=rf"{name} is a pointer of git-lfs.*`git lfs pull` in "):
        open_checkpoint(directory)


def test_pointers_of_other_files_are_told_too(directory: Path, tmp_path: Path) -> None:
    for name in ("model.gguf", "mmproj-f16.gguf", "vocab.json"):
        (tmp_path / name).write_text(POINTER)
    remark = "is a pointer of git-lfs"
    with pytest.raises(CheckpointError, match=remark):
        open_checkpoint(tmp_path / "model.gguf")
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (directory / "merges.txt").touch()
    for name in ("vocab.json", "merges.txt"):
        (directory / name).write_text(POINTER)
        with pytest.raises(CheckpointError, match=rf"{name} {remark}"):
            open_checkpoint(directory)
        (directory / name).write_text("{}")
    (directory / "merges.txt").unlink()
    (directory / "tokenizer.model").write_text(POINTER)
    with pytest.raises(CheckpointError, match=rf"tokenizer.model {remark}"):
        open_checkpoint(directory)


def test_links_of_gguf_files_and_adapters_are_told_too(families: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to("gone")
    with pytest.raises(CheckpointError, match="is a link to gone"):
        open_checkpoint(tmp_path / "model.gguf")
    path = write_model(families / "qwen3", tmp_path / "whole.gguf")
    (tmp_path / "mmproj-f16.gguf").symlink_to("gone")
    assert open_checkpoint(path).vision is None  # as without a tower: the model answers to text
    with pytest.raises(CheckpointError, match="is a link to gone"):
        open_checkpoint(path, mmproj=str(tmp_path / "mmproj-f16.gguf"))
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").symlink_to("gone")
    with pytest.raises(CheckpointError, match="is a link to gone"):
        read_adapter(tmp_path, open_checkpoint(families / "qwen3").config)


@pytest.mark.parametrize("name", ["x" * 5000, "owner/" + "x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_no_model(name: str) -> None:
    with pytest.raises(ModelNotFound, match="a name of "):
        open_checkpoint(name)
    with pytest.raises(ModelNotFound, match="a name of "):
        open_checkpoint("nowhere.gguf", mmproj=name)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.json",
        "decision.json",
        "processor_config.json",
    ],
)
def test_json_that_is_too_deep_is_told_with_its_file(directory: Path, name: str) -> None:
    text = f'{{"a": {DEEP}'
    (directory / name).write_text(DEEP if name == "modules.json" else text)
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**6}, "must be a number of layers up to 2,048, got 1000000"),
        ({"num_hidden_layers": 2000}, "has 2,000 layers by its config, and the file has only"),
        ({"vocab_size": 10**12}, "its vocab_size is 1,000,000,000,000 by its config, more than"),
        ({"hidden_size": 10**9}, "its hidden_size is 1,000,000,000 by its config, more than the file could have"),
        ({"num_attention_heads": 10**9, "num_key_value_heads": 10**9}, "its heads is 1,000,000,000"),
        ({"intermediate_size": 10**12}, "its width is 1,000,000,000,000"),
    ],
)
def test_sizes_of_a_config_are_compared_with_its_file_before_anything_is_built(
    directory: Path, changes: dict[str, Any], words: str
) -> None:
    edit(directory / "config.json", changes, ("layer_types",))
    expected_shapes.cache_clear()
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(directory)
    assert expected_shapes.cache_info().misses == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "key", "value"),
    [("exaone4", "sliding_window_pattern", 10**10), ("qwen2", "rope_scaling", {"mrope_section": [10**12, 1, 1]})],
)
def test_lists_by_the_numbers_of_a_config_have_an_end(copy: Copy, family: str, key: str, value: Any) -> None:  # noqa: F811
    directory = copy(family)
    edit(directory / "config.json", {key: value})
    with suppress(RekindleError):
        open_checkpoint(directory)
    config = parse_config(json.loads((directory / "config.json").read_text()) | {"sliding_window_pattern": 4}, "x")
    with pytest.raises(CheckpointError, match="must have"):
        with_sections(config, [10**12, 1, 1], "x", interleaved=False)


def test_experts_are_compared_with_the_file_too(copy: Copy) -> None:  # noqa: F811
    directory = copy("qwen3-moe")
    edit(directory / "config.json", {"num_experts": 10**7})
    expected_shapes.cache_clear()
    with pytest.raises(CheckpointError, match=r"its count is 10,000,000 by its config, more than"):
        open_checkpoint(directory)
    edit(directory / "config.json", {"num_experts": 5000})
    with pytest.raises(CheckpointError, match=r"its number of experts in . layers is .* more than the file could have"):
        open_checkpoint(directory)
    assert expected_shapes.cache_info().misses == 0


def test_blocks_of_a_gguf_file_are_compared_with_its_tensors(families: Path, tmp_path: Path) -> None:
    path = write_model(families / "qwen3", tmp_path / "model.gguf")
    data = path.read_bytes()
    key = b"qwen3.block_count" + (4).to_bytes(4, "little")
    place = data.index(key) + len(key)
    path.write_bytes(data[:place] + (10**9).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(CheckpointError, match="has 1,000,000,000 layers by its config"):
        open_checkpoint(path)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "entries",
    [
        {"target_modules": ENDLESS},
        {"exclude_modules": ENDLESS},
        {"rank_pattern": {ENDLESS: 2}},
        {"alpha_pattern": {ENDLESS: 2}},
        {"layers_to_transform": [0], "layers_pattern": ENDLESS},
    ],
)
def test_a_pattern_of_an_adapter_that_never_ends_is_refused(
    families: Path, tmp_path: Path, entries: dict[str, Any]
) -> None:
    config = open_checkpoint(families / "qwen3").config
    parts = random_parts(config, rank=2, selects=lambda name: name.endswith("q_proj"))
    save_file(tensors_of(parts), tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config_of(parts, **entries)))
    with pytest.raises(CheckpointError, match=r"a pattern that takes more than 0\.01 s"):
        read_adapter(tmp_path, config)


def test_patterns_match_as_pythons_own() -> None:
    assert patterns.match_all("a|ab", "ab", "x") is not None
    assert patterns.match_all("a", "ab", "x") is None
    assert patterns.match_all("a", "a\n", "x") is None
    assert patterns.match_start("a", "ab", "x") is not None
    with pytest.raises(CheckpointError, match=r"x has '\(', no regular expression"):
        patterns.match_start("(", "", "x")


@pytest.mark.usefixtures("quick")
def test_a_pattern_of_a_response_template_that_never_ends_fails_that_answer() -> None:
    template = load({"start_anchor": "<|im_start|>", "fields": {"content": {"open_pattern": r"(x+x+)+y"}}})
    with pytest.raises(CheckpointError, match="the model's response template has"):
        ResponseParser(template).feed("x" * 200)
    with pytest.raises(Malformed, match="takes too long"):
        parse("xml-inline", "x" * 200, {"tag_pattern": r"(?P<key>(x+x+)+y)"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ 2.0 ** 10000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ none.x.y }}",
        "{{ messages[0].content.upper.x.y }}",
        "{{ 'a' + 1 }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for a in b %}" * 40 + "x" + "{% endfor %}" * 40,
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 2 ** (10 ** 12) }}",
        "{{ 'a' * 10 ** 12 }}",
        "{% set a = range(50000) | list %}{% for b in a %}{% for c in a %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ ['a'] | map('center', 10 ** 10) | list }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' | format(10 ** 10, 1) }}",
        "{{ '%.9999999999f' | format(1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 10) }}",
        "{{ '{a:9999999999}'.format_map({'a': 1}) }}",
        "{{ lipsum(10 ** 10) }}",
        "{{ [1] | batch(10 ** 10, 'a') | list }}",
        "{{ [1] | slice(10 ** 10) | list }}",
        "{{ messages | tojson(indent=10 ** 10) }}",
        "{{ ('a\n' * 10 ** 5) | indent('a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 5) | replace('a', 'a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 5).replace('a', 'a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 5) | join('a' * 10 ** 6) }}",
        "{{ ('a' * 10 ** 6).join('a' * 10 ** 5) }}",
    ],
)
def test_an_error_of_a_template_is_one_of_the_prompt(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_TURNS", 100_000)
    with pytest.raises(InvalidRequest, match="the model's chat template"):
        ChatTemplate(source).render([{"role": "user", "content": "hello"}])


def test_filters_and_methods_within_the_bounds_are_those_of_jinja() -> None:
    source = (
        "{{ 'a' | center(3) }}{{ 'a'.ljust(3) }}{{ '%3d 12345678' % 1 }}{{ '**{}** 12345678'.format(2) }}"
        "{{ ['b', 'c'] | join(', ') }}{{ ','.join(['d']) }}{{ 'aa' | replace('a', 'ee') }}"
        "{{ {'f': 1} | tojson(indent=1) }}"
    )
    rendered = ChatTemplate(source).render([{"role": "user", "content": "hello"}])
    assert rendered == ' a a    1 12345678**2** 12345678b, cdeeee{\n "f": 1\n}'


def break_shapes(directory: Path) -> None:
    edit(directory / "config.json", {"rope_scaling": {"rope_type": "yarn", "factor": "x"}})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        lambda directory: edit(directory / "config.json", {"eos_token_id": [[1]]}),
        lambda directory: edit(directory / "config.json", {"architectures": 3}),
        lambda directory: edit(directory / "config.json", {"vision_config": [1]}),
        lambda directory: edit(directory / "config.json", {"quantization_config": [1]}),
        lambda directory: (directory / "generation_config.json").write_text('{"eos_token_id": {"a": 1}}'),
        lambda directory: (directory / "tokenizer_config.json").write_text('{"chat_template": [1], "bos_token": [2]}'),
        lambda directory: (directory / "decision.json").write_text('{"labels": {"choice": 3}}'),
        lambda directory: (directory / "modules.json").write_text('[{"type": 1, "path": 2}]'),
        lambda directory: (directory / "sentence_bert_config.json").write_text('{"modality_config": 3}'),
        break_shapes,
    ],
)
def test_values_of_other_kinds_are_faults_of_the_file(directory: Path, change: Callable[[Path], Any]) -> None:
    change(directory)
    with suppress(RekindleError):
        open_checkpoint(directory)


def test_a_directory_is_no_file(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError):
        open_checkpoint(directory)
    shutil.rmtree(directory / "model.safetensors")
    save_file({"a": np.zeros(1)}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="layers by its config"):
        open_checkpoint(directory)


@pytest.mark.parametrize("escaped", [False, True])
def test_merges_without_the_prefix_of_pieces_do_not_end_the_process(directory: Path, escaped: bool) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["continuing_subword_prefix"] = "##"
    text = json.dumps(content).replace("continuing_", "continuin\\u0067_" if escaped else "continuing_")
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match="is without the prefix '##'"):
        open_checkpoint(directory)


def test_a_token_far_beyond_the_vocabulary_takes_no_memory_and_no_time(directory: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = 2**31
    (directory / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = open_checkpoint(directory).tokenizer
    assert tokenizer is not None
    damaged = "the model's tokenizer is damaged: it has [0-9]+ tokens, and one of them is 2147483648"
    with pytest.raises(InvalidRequest, match=damaged):
        Compiler(tokenizer, 512, []).compile(regex("regex", "a"))
    with pytest.raises(InvalidRequest, match=damaged):
        tokenizer.fewest("a" * 1000, 1)
