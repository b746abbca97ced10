"""A model saved as GGUF is the session's, bit for bit, and a file as llama.cpp's converter writes it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from rekindle.assembly.loading.forms import weight_form
from rekindle.assembly.weights.load import load_weights
from rekindle.core.concurrency.progress import Progress, silent
from rekindle.core.device.place import Place
from rekindle.core.errors import CheckpointError, ConfigError, StorageError, UnsupportedModel
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.gguf.tokenizer import gguf_tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.saving import gguf as saving_gguf
from rekindle.formats.saving import output, tensors
from rekindle.formats.saving.gguf_names import stored_numbers
from rekindle.formats.saving.gguf_vocabulary import check_tokens, vocabulary_of
from rekindle.formats.saving.saving import save_model
from rekindle.settings.engine import Quantize, Settings
from tests.gguf_models.files import UNSAID, said_directory, write_model
from tests.unit.formats.test_gguf_sentencepiece import metadata_of, trained

HERE = Place((jax.devices()[0],))
FLOAT32 = jnp.dtype("float32")
CODED = ("gpt2", "llama-tied", "qwen2", "qwen3")
"""Goldens whose rows are whole groups: transposed, permuted, with biases and with norms of heads."""
PLAIN = (
    "arcee", "cohere2", "gemma", "gemma2", "glm", "glm4", "gpt2", "granite", "llama-linear",
    "llama-tied", "llama3-rope", "mistral", "olmo", "olmo2", "phi", "phi3-longrope", "qwen2", "qwen3",
    "seed-oss", "smollm3", "starcoder2",
)  # fmt: skip


def codes_of(checkpoint: Checkpoint, quantize: Quantize = "int4") -> WeightForm:
    return weight_form(checkpoint, Settings(quantize=quantize, weights="dequantized"), FLOAT32, HERE)


def saved(checkpoint: Checkpoint, path: Path, quantize: Quantize = "int4") -> Path:
    return save_model(checkpoint, codes_of(checkpoint, quantize).kind_of, path, silent).path


def check_same_weights(model: Checkpoint, form: WeightForm, other: Checkpoint) -> None:
    """Compare the arrays on the device, and the programs' view of them, bit for bit."""
    theirs = weight_form(other, Settings(weights="packed"), FLOAT32, HERE)
    assert theirs.kinds == form.kinds
    forms = [
        [request.storage(each) for request in abstract_decoder(checkpoint.config, each, "xla", WHOLE).requests]
        for checkpoint, each in ((model, form), (other, theirs))
    ]
    assert forms[0] == forms[1]
    arrays = (load_weights(each.config, each.tensors, how) for each, how in ((model, form), (other, theirs)))
    for ours, loaded in zip(*arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(loaded))


@pytest.mark.parametrize(
    ("model", "quantize"),
    [
        *((model, "int4") for model in CODED),
        *(pytest.param(model, "int8", marks=() if model == "qwen2" else pytest.mark.wide) for model in CODED),
    ],
)
def test_a_file_opens_with_the_weights_of_the_session(
    model: str, quantize: Quantize, families: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(families / model)
    path = saved(checkpoint, tmp_path / "model.gguf", quantize)
    check_same_weights(checkpoint, codes_of(checkpoint, quantize), open_checkpoint(path))
    kinds = {each.tensor_type.name for each in gguf.GGUFReader(path).tensors}
    assert kinds == ({"F32", "Q4_0", "Q8_0"} if quantize == "int4" else {"F32", "Q8_0"})


def test_a_file_of_another_file_keeps_its_metadata(families: Path, tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_author("someone")
        writer.add_uint64("general.custom", 1 << 40)
        writer.add_array("general.tags", ["a", "b"])

    source = write_model(families / "qwen3", tmp_path / "source.gguf", change, {"blk.0.attn_q.weight": "Q8_0"})
    checkpoint = open_checkpoint(source)
    path = saved(checkpoint, tmp_path / "model.gguf")
    check_same_weights(checkpoint, codes_of(checkpoint), open_checkpoint(path))
    before, after = (open_gguf_file(each).metadata for each in (source, path))
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"general.file_type", "general.quantization_version", "rekindle.kinds"}
    assert gguf.GGUFReader(path).fields["general.custom"].types == [gguf.GGUFValueType.UINT64]


def test_experts_of_another_file_are_saved_in_their_stacks(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(families / "olmoe", tmp_path / "source.gguf"))
    path = saved(checkpoint, tmp_path / "model.gguf")
    check_same_weights(checkpoint, codes_of(checkpoint), open_checkpoint(path))


@pytest.mark.parametrize("model", PLAIN)
def test_tensors_and_settings_are_those_of_the_converter(model: str, families: Path, tmp_path: Path) -> None:
    directory = said_directory(families / model, tmp_path / model) if model in UNSAID else families / model
    checkpoint = open_checkpoint(directory)
    save_model(checkpoint, {}, tmp_path / "ours.gguf", silent)
    ours, theirs = (
        open_gguf_file(tmp_path / "ours.gguf"),
        open_gguf_file(write_model(families / model, tmp_path / "theirs.gguf")),
    )
    assert ours.shapes == theirs.shapes
    for name in theirs.shapes:
        numbers = np.asarray(ours.read(name), np.float32)
        tolerance = 1e-6 if name.startswith("rope_") else 0  # divided in float32, and not in float64
        np.testing.assert_allclose(numbers, np.asarray(theirs.read(name)), rtol=tolerance, atol=0, err_msg=name)
    assert ours.metadata["general.architecture"] == theirs.metadata["general.architecture"]
    for key in ours.metadata.keys() & theirs.metadata.keys():
        value = theirs.metadata[key]
        assert ours.metadata[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("opt", "no architecture for the family opt"),
        ("qwen3-moe", "with experts"),
        ("falcon-h1", "with states"),
        ("stablelm-parallel", "norms.0.weight has another form"),
        ("gemma2", "would lose its layers"),
        ("qwen2-window", "has no form for this model"),
        ("exaone4", "none was compared with llama.cpp"),
        ("phi3", "has a sliding window"),
        ("ernie4_5", "has biases"),
        ("stablelm", "an embedding that is its head"),
    ],
)
def test_what_llama_cpp_cannot_read_is_refused_by_name(
    model: str, message: str, families: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(families / model)
    with pytest.raises(UnsupportedModel, match=message) as raised:
        save_model(checkpoint, {}, tmp_path / "model.gguf", silent)
    assert str(raised.value).startswith(str(families / model))
    assert "safetensors" in str(raised.value)
    assert not list(tmp_path.iterdir())


def byte_level() -> Backend:
    """Return a tokenizer of bytes with merges, which splits texts as Llama 3's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "w"), ("e", "l"), ("l", "o"), ("el", "lo"), ("4", "4"), ("44", "44")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    model = models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges, ignore_merges=True)
    backend = Backend(model)
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def with_tokenizer(families: Path, directory: Path, change: Callable[[Backend], None] = lambda _: None) -> Path:
    shutil.copytree(families / "llama-tied", directory)
    backend = byte_level()
    change(backend)
    backend.add_special_tokens(["<s>", "</s>", "<|turn|>"])
    backend.add_tokens(["<tool>"])
    backend.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": "{{ messages }}", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"eos_token_id": [263, 264]}
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def test_a_tokenizer_of_bytes_gives_the_same_tokens(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(with_tokenizer(families, tmp_path / "model"))
    path = saved(checkpoint, tmp_path / "model.gguf")
    ours, stored = checkpoint.tokenizer, open_checkpoint(path)
    assert ours is not None
    assert stored.tokenizer is not None
    for text in ("hello world 12345 it's\n\n <tool> x", "naïve — 東京 🚀", "<s>again"):
        assert stored.tokenizer.encode(text) == ours.encode(text)
        assert stored.tokenizer.decode(ours.encode(text)) == ours.decode(ours.encode(text))
    assert (stored.tokenizer.bos_token, stored.tokenizer.eos_token) == ("<s>", "</s>")
    assert stored.tokenizer.chat_template == "{{ messages }}"
    assert stored.tokenizer.special_texts == ours.special_texts
    assert stored.eos_ids == checkpoint.eos_ids
    metadata = open_gguf_file(path).metadata
    assert metadata["tokenizer.ggml.pre"] == "llama-bpe"
    assert metadata["tokenizer.ggml.tokens"][300] == "[PAD300]"
    assert [metadata["tokenizer.ggml.token_type"][place] for place in (0, 262, 265, 300)] == [1, 3, 4, 5]


def test_a_tokenizer_that_splits_in_another_way_is_refused(families: Path, tmp_path: Path) -> None:
    def change(backend: Backend) -> None:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split("o", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    checkpoint = open_checkpoint(with_tokenizer(families, tmp_path / "model", change))
    with pytest.raises(UnsupportedModel, match="no pre-tokenizer that splits texts as its own"):
        saved(checkpoint, tmp_path / "model.gguf")


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_of_sentencepiece_gives_the_same_tokens(prefix: bool, families: Path, tmp_path: Path) -> None:
    """Check the scores made from merges: its file has none."""
    tokenizer = gguf_tokenizer(metadata_of(trained(prefix), prefix), "a model")
    assert tokenizer is not None
    stored = gguf_tokenizer(vocabulary_of(tokenizer, frozenset({2}), 800, "a model"), "a file")
    assert stored is not None
    check_tokens(tokenizer, stored, "a model")
    assert stored.encode("session.generate(prompt)") == tokenizer.encode("session.generate(prompt)")


def test_an_interrupted_file_leaves_nothing(families: Path, tmp_path: Path) -> None:
    checkpoint, reports = open_checkpoint(families / "qwen3"), list[Progress]()

    def stop(progress: Progress) -> None:
        reports.append(progress)
        if progress.done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_model(checkpoint, codes_of(checkpoint).kind_of, tmp_path / "model.gguf", stop)
    assert not list(tmp_path.iterdir())
    assert reports[0].total is not None
    assert 100_000 < reports[-1].done < reports[0].total


def test_nothing_is_overwritten_unless_told(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    kinds, path = codes_of(checkpoint).kind_of, tmp_path / "model.gguf"
    path.write_text("mine")
    with pytest.raises(StorageError, match=r"model\.gguf exists: .*--overwrite"):
        save_model(checkpoint, kinds, path, silent)
    assert path.read_text() == "mine"
    assert save_model(checkpoint, kinds, path, silent, overwrite=True).bytes_after == path.stat().st_size
    with pytest.raises(StorageError, match="is the model itself"):
        save_model(open_checkpoint(path), {}, path, silent, overwrite=True)
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(StorageError, match="is a directory"):
        save_model(checkpoint, kinds, tmp_path / "folder.gguf", silent, overwrite=True)
    with pytest.raises(ConfigError, match="safetensors is a directory"):
        save_model(checkpoint, kinds, path, silent, style="safetensors")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.gguf", "model.gguf"]


def test_a_full_disk_is_told_before_the_weights_are_written(
    families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, total = open_checkpoint(families / "qwen3"), output.SPARE_BYTES + 100_000
    usage: Any = shutil.disk_usage(tmp_path)._replace(free=total)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match=r"needs 169 kB, and the disk of .* has 16\.9 MB free"):
        saved(checkpoint, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_pieces_are_small_and_give_the_same_file(
    families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, counts = open_checkpoint(families / "qwen3"), [0]
    path = saved(checkpoint, tmp_path / "whole.gguf")
    monkeypatch.setattr(tensors, "_AT_ONCE", 1000)
    save_model(
        checkpoint,
        codes_of(checkpoint).kind_of,
        tmp_path / "pieces.gguf",
        lambda progress: counts.append(progress.done),
    )
    assert (tmp_path / "pieces.gguf").read_bytes() == path.read_bytes()
    assert max(np.diff(counts)) <= 4000


def test_files_that_another_program_wrote_anew_are_read_as_its_blocks(families: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    path = saved(checkpoint, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(path, "r+")
    (tensor,) = (each for each in reader.tensors if each.name == "blk.0.ffn_up.weight")
    tensor.data[3, :2] = np.array([0.5], np.float16).view(np.uint8)
    expected = gguf.dequantize(np.array(tensor.data), tensor.tensor_type)
    reader.data.flush()
    stored = open_checkpoint(path)
    np.testing.assert_array_equal(np.asarray(stored.tensors["model.layers.0.mlp.up_proj.weight"]), expected)


def test_changed_files_are_not_saved(families: Path, tmp_path: Path) -> None:
    shutil.copytree(families / "qwen3", tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content + b"")
    with pytest.raises(CheckpointError, match="have changed since they were read"):
        saved(checkpoint, tmp_path / "model.gguf")


def test_a_tensor_is_read_when_its_turn_comes(families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the bytes in the file at each read: as many as the tensors before have."""
    checkpoint, written, reads = open_checkpoint(families / "qwen3"), [0], list[int]()

    def read(*arguments: Any, **more: Any) -> Any:
        reads.append(written[-1])
        return stored_numbers(*arguments, **more)

    monkeypatch.setattr(saving_gguf, "stored_numbers", read)

    def report(progress: Progress) -> None:
        written.append(progress.done)

    path = save_model(checkpoint, codes_of(checkpoint).kind_of, tmp_path / "model.gguf", report).path
    shapes = sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: len(tensor.shape) > 1)
    assert reads == [0, *np.cumsum([tensor.n_bytes for tensor in shapes])[:-1]]
