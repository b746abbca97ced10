"""What an earlier session kept of a model's weights has the bits of a conversion, and is read once, in pieces."""

import json
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.filling import load
from rekindle.assembly.weights import keeping
from rekindle.assembly.weights import load as load_module
from rekindle.assembly.weights.keeping import DECODER, Keeper, is_worth_keeping
from rekindle.assembly.weights.reading import Conversion
from rekindle.core.concurrency.progress import Progress, silent
from rekindle.core.device.place import Place
from rekindle.core.models.shard import WHOLE
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.weight_store import KeptWeights, WeightCatalog, WeightStore
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.gguf.kinds import kind_of
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from rekindle_kernels.blocks import Blocks

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMALL = Settings(page_size=16, num_pages=40, max_running=4, max_prefill_tokens=64)
CODES = {"Q4_1": 3, "Q6_K": 14}
CASES: dict[str, tuple[str, Settings, int]] = {
    "Q4_1 packed": ("Q4_1", replace(SMALL, weights="packed"), 1),
    "Q6_K packed": ("Q6_K", replace(SMALL, weights="packed"), 1),
    "dequantized": ("Q6_K", replace(SMALL, weights="dequantized"), 1),
    "bfloat16": ("", replace(SMALL, dtype="bfloat16"), 1),
    "int8 on load": ("", replace(SMALL, quantize="int8"), 1),
    "two devices": ("Q4_1", replace(SMALL, weights="packed"), 2),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Make a model wide enough for blocks of 256 numbers."""
    directory, random = tmp_path_factory.mktemp("models") / "wide", np.random.default_rng(0)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    sizes = {"q": (256, 256), "k": (128, 256), "v": (128, 256), "o": (256, 256)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (128, 256), "model.norm": (256,), "lm_head": (128, 256)}
    for layer in range(2):
        begin = f"model.layers.{layer}"
        shapes |= {f"{begin}.self_attn.{name}_proj": shape for name, shape in sizes.items()}
        shapes |= {f"{begin}.mlp.{name}_proj": (512, 256) for name in ("gate", "up")}
        shapes |= {f"{begin}.mlp.down_proj": (256, 512)}
        shapes |= {f"{begin}.{name}_layernorm": (256,) for name in ("input", "post_attention")}
    tensors = {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    return open_checkpoint(directory)


def in_blocks(plain: Checkpoint, kind: str) -> Checkpoint:
    """Return the model with random blocks of a kind as its matrices."""
    tensors, random, blocks = dict[str, Any](), np.random.default_rng(1), kind_of(CODES[kind])
    for name in plain.tensors:
        shape = plain.tensors[name].shape
        if len(shape) == 1:
            tensors[name] = plain.tensors[name]
            continue
        data = random.integers(0, 256, (shape[0], shape[1] // blocks.numbers, blocks.size), np.uint8)
        for place in (0, 2) if kind == "Q4_1" else (blocks.size - 2,):
            scales = random.normal(size=data.shape[:2]).astype(np.float16)
            data[..., place : place + 2] = scales[..., None].view(np.uint8)
        tensors[name] = Blocks(data.reshape(shape[0], -1), blocks)
    return replace(plain, tensors=tensors, formats=(kind,))


class Unread(Mapping[str, Any]):
    """Tensors that nobody may look up."""

    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} is looked up")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("the tensors are looked up")

    def __len__(self) -> int:
        raise AssertionError("the tensors are looked up")


def blueprint_of(plain: Checkpoint, case: str) -> Blueprint:
    kind, settings, devices = CASES[case]
    checkpoint = in_blocks(plain, kind) if kind else plain
    return Blueprint.of(checkpoint, settings, Place(tuple(jax.devices()[:devices])))


def keeper_of(directory: Path) -> Keeper:
    return Keeper(WeightStore(directory / "weights", SnapshotKey((("weights", "one"),)), "wide", 1 << 30))


def loaded(blueprint: Blueprint, keeper: Keeper) -> list[jax.Array]:
    (arrays,) = load([blueprint], silent, keeper)
    return arrays


def keep(blueprint: Blueprint, keeper: Keeper, arrays: list[jax.Array]) -> None:
    keeper.keep_later([(DECODER, blueprint.place, arrays)], [])()


def unread(blueprint: Blueprint) -> Blueprint:
    return replace(blueprint, checkpoint=replace(blueprint.checkpoint, tensors=Unread()))


@pytest.mark.parametrize("case", CASES)
def test_kept_weights_have_the_bits_of_a_conversion(case: str, plain: Checkpoint, tmp_path: Path) -> None:
    blueprint = blueprint_of(plain, case)
    expected, first = loaded(blueprint, Keeper(None)), keeper_of(tmp_path)
    keep(blueprint, first, loaded(blueprint, first))
    assert first.bytes_read == 0
    assert len(WeightCatalog(tmp_path / "weights").entries()) == blueprint.place.tensor
    again = keeper_of(tmp_path)
    arrays = loaded(unread(blueprint), again)
    for array, other in zip(arrays, expected, strict=True):
        assert (array.dtype, array.shape, array.sharding) == (other.dtype, other.shape, other.sharding)
        assert np.asarray(array).tobytes() == np.asarray(other).tobytes()
    assert again.bytes_read == sum(array.nbytes for array in arrays)
    keep(blueprint, again, arrays)
    assert len(WeightCatalog(tmp_path / "weights").entries()) == blueprint.place.tensor


def test_a_damaged_file_is_converted_anew_with_the_progress_of_one_reading(plain: Checkpoint, tmp_path: Path) -> None:
    blueprint, first = blueprint_of(plain, "Q4_1 packed"), keeper_of(tmp_path)
    expected = loaded(blueprint, first)
    keep(blueprint, first, expected)
    (data,) = (tmp_path / "weights").glob("*/weights.bin")
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    keeper, told = keeper_of(tmp_path), list[Progress]()
    with pytest.warns(RuntimeWarning, match="converted weights in .* cannot be used"):
        (arrays,) = load([blueprint], told.append, keeper)
    assert [np.asarray(array).tobytes() for array in arrays] == [np.asarray(array).tobytes() for array in expected]
    assert (told[-1].done, keeper.bytes_read) == (told[-1].total, 0)
    keep(blueprint, keeper, arrays)
    assert loaded(unread(blueprint), keeper_of(tmp_path))


@pytest.mark.parametrize(
    ("case", "is_kept"),
    [("bfloat16", False), ("int8 on load", True), ("Q4_1 packed", True), ("dequantized", False)],
)
def test_on_cpus_weights_in_blocks_alone_are_kept(case: str, is_kept: bool, plain: Checkpoint) -> None:
    blueprint = blueprint_of(plain, case)
    assert is_worth_keeping(blueprint.checkpoint, blueprint.form, blueprint.place) == is_kept


def test_on_accelerators_all_weights_are_kept(plain: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint = blueprint_of(plain, "bfloat16")
    monkeypatch.setattr(keeping, "shares_memory", lambda _: False)
    assert is_worth_keeping(plain, blueprint.form, blueprint.place)
    assert not is_worth_keeping(replace(plain, files=()), blueprint.form, blueprint.place)


def test_files_changed_since_they_were_opened_are_not_kept(plain: Checkpoint, tmp_path: Path) -> None:
    blueprint = blueprint_of(plain, "Q4_1 packed")
    (tmp_path / "model").write_bytes(b"as opened")
    keeper = replace(keeper_of(tmp_path), stamps={tmp_path / "model": (0, 0, 0, 0)})
    keep(blueprint, keeper, loaded(blueprint, keeper))
    assert not WeightCatalog(tmp_path / "weights").entries()


def test_weights_deleted_before_they_are_written_are_not_kept(plain: Checkpoint, tmp_path: Path) -> None:
    blueprint, keeper = blueprint_of(plain, "Q4_1 packed"), keeper_of(tmp_path)
    arrays = loaded(blueprint, keeper)
    never: Any = [Future()]
    close = keeper.keep_later([(DECODER, blueprint.place, arrays)], never)
    for array in arrays:
        array.delete()
    close()
    assert not WeightCatalog(tmp_path / "weights").entries()


def test_a_large_model_whose_session_closes_is_not_waited_for(
    plain: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "QUICK_BYTES", 0)
    blueprint, keeper = blueprint_of(plain, "Q4_1 packed"), keeper_of(tmp_path)
    never: Any = [Future()]
    keeper.keep_later([(DECODER, blueprint.place, loaded(blueprint, keeper))], never)()
    assert not WeightCatalog(tmp_path / "weights").entries()


class SlowDevice:
    """A device that takes one array at a time, and holds its first until the file's next one has been read.

    Attributes:
        most: the most bytes of host arrays alive at a time.
    """

    def __init__(self) -> None:
        self.most, self._alive = 0, 0
        self._lock, self._one, self.second_read = threading.Lock(), threading.Lock(), threading.Event()

    def hold(self, array: Any) -> None:
        with self._lock:
            self._alive += array.nbytes
            self.most = max(self.most, self._alive)
        weakref.finalize(array, self._release, array.nbytes)

    def _release(self, size: int) -> None:
        with self._lock:
            self._alive -= size

    def put(self, array: Any) -> jax.Array:
        with self._one:
            assert self.second_read.wait(60), "nothing is read while the device takes an array"
            copy: jax.Array = jax.device_put(np.array(array))  # so that the host's memory is free again
            return copy


def test_a_file_is_read_once_while_the_device_takes_arrays_with_the_largest_in_hand(
    plain: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blueprint, first = blueprint_of(plain, "bfloat16"), keeper_of(tmp_path)
    expected = loaded(blueprint, first)
    keep(blueprint, first, expected)
    device, reads, lock = SlowDevice(), list[int](), threading.Lock()
    read_into, empty = KeptWeights.read_into, load_module.empty

    def counted(self: KeptWeights, index: int, into: Any) -> None:
        read_into(self, index, into)
        with lock:
            reads.append(index)
            if len(reads) > 1:
                device.second_read.set()

    def held(shape: tuple[int, ...], dtype: Any) -> Any:
        array = empty(shape, dtype)
        device.hold(array)
        return array

    monkeypatch.setattr(KeptWeights, "read_into", counted)
    monkeypatch.setattr(keeping, "empty", held)
    form, kernels = blueprint.form, blueprint.programs.shapes.implementation
    conversion = Conversion(blueprint.checkpoint.config, Unread(), form, kernels)
    weights = keeper_of(tmp_path).over(conversion, DECODER)(WHOLE, device.put)
    assert sorted(reads) == list(range(len(expected)))
    assert device.most <= max(array.nbytes for array in expected)
    for array, other in zip(weights.arrays, expected, strict=True):
        assert np.asarray(array).tobytes() == np.asarray(other).tobytes()
