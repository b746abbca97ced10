"""Weights on the device are the checkpoint's tensors, joined and cast, and cost no compilation."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from rekindle.assembly.weights import copying, load
from rekindle.assembly.weights.load import load_decoder, load_weights
from rekindle.core.errors import CheckpointError
from rekindle.core.models.attention import Attention
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.feed_forward.dense import FeedForward
from rekindle.core.models.layer import Layer
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.checkpoint import Checkpoint, LazyTensors
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import FileArray, Tensor
from tests.waiting import PATIENCE

FAMILIES = ["llama-tied", "llama3-rope", "qwen2", "qwen3"]
FLOAT32 = jnp.dtype("float32")
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_compiles_nothing(family: str, dtype: str, families: Path, compilations: list[str]) -> None:
    checkpoint = open_checkpoint(families / family)
    load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype(dtype))
    assert compilations == []
    jnp.ones(3).astype(dtype)
    assert compilations != [], "compilations are told"


def expected(checkpoint: Checkpoint, dtype: str, *names: str) -> Array:
    """Join tensors and cast the result as JAX does; vectors keep their precision."""
    joined = jnp.concatenate([jnp.asarray(checkpoint.tensors[name]) for name in names])
    return np.asarray(joined.astype(dtype if joined.ndim > 1 else "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", [*FAMILIES, pytest.param("smollm2", marks=pytest.mark.wide)])
def test_weights_are_the_tensors_to_the_bit(
    model: str, dtype: str, families: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue("smollm2") if model == "smollm2" else open_checkpoint(families / model)
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype(dtype))
    place = 1
    layer, prefix = cast(Layer, getattr(decoder, f"layer_{place}")), f"model.layers.{place}"
    assert layer.before_attention is not None
    assert decoder.norm is not None
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, FeedForward)
    parts: Any = layer.attention, layer.mlp
    of_attention, of_mlp = parts
    attention = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
    cases: list[tuple[Any, list[str]]] = [
        (decoder.embedding.weight.data, ["model.embed_tokens.weight"]),
        (decoder.norm.weight, ["model.norm.weight"]),
        (layer.before_attention.weight, [f"{prefix}.input_layernorm.weight"]),
        (of_attention.qkv.weight.data, [f"{name}.weight" for name in attention]),
        (of_attention.out.weight.data, [f"{prefix}.self_attn.o_proj.weight"]),
        (of_mlp.gate_up.weight.data, [f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"]),
        (of_mlp.down.weight.data, [f"{prefix}.mlp.down_proj.weight"]),
    ]
    if checkpoint.config.attentions[0].qkv_bias:
        cases.append((of_attention.qkv.bias, [f"{name}.bias" for name in attention]))
    for weight, names in cases:
        reference = expected(checkpoint, dtype, *names)
        assert (weight[...].dtype, weight[...].shape) == (reference.dtype, reference.shape)
        assert np.asarray(weight[...]).tobytes() == reference.tobytes(), names


def aligned(tensor: Array) -> Array:
    """Copy a tensor to aligned memory, usable by the CPU backend without a copy."""
    memory = np.empty(tensor.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
    copy[...] = tensor
    return copy


def test_weights_do_not_change_with_what_they_were_read_from(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen2")
    arrays = {name: aligned(np.asarray(tensor)) for name, tensor in checkpoint.tensors.items()}
    decoder = load_decoder(checkpoint.config, arrays, FLOAT32)
    for array in arrays.values():
        array.fill(7.0)
    again = load_decoder(checkpoint.config, checkpoint.tensors, FLOAT32)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(decoder), nnx.state(again))


def test_the_calling_thread_is_told_of_every_byte(families: Path) -> None:
    checkpoint = open_checkpoint(families / "qwen3")
    reports: list[tuple[int, int]] = []

    def loaded(size: int) -> None:
        reports.append((size, threading.get_ident()))

    weights = load_weights(checkpoint.config, checkpoint.tensors, WeightForm(FLOAT32), loaded)
    assert sum(size for size, _ in reports) == sum(array.nbytes for array in weights)
    assert {thread for _, thread in reports} == {threading.get_ident()}


def test_a_tensor_that_cannot_be_read_ends_the_loading(families: Path) -> None:
    def broken(name: str) -> Array:
        raise CheckpointError(f"{name} is broken")

    checkpoint = open_checkpoint(families / "qwen3")
    tensors = LazyTensors({name: partial(broken, name) for name in checkpoint.tensors})
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is broken"):
        load_decoder(checkpoint.config, tensors, FLOAT32)


class Counted:
    """Tensors with a count of the bytes between their lookup and their copy to the device."""

    def __init__(self, tensors: Any):
        self.most = 0
        self._tensors, self._bytes = tensors, 0
        self._lock = threading.Lock()

    def read(self, name: str) -> Array:
        tensor: Array = self._tensors[name]
        self._add(tensor.nbytes)
        return tensor

    def put(self, array: Array) -> jax.Array:
        arrived: jax.Array = jax.device_put(array)
        self._add(-array.nbytes)
        return arrived

    def _add(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            self.most = max(self.most, self._bytes)


@pytest.mark.parametrize("family", ["llama-tied", "mixtral", "granitemoe"])
def test_what_is_read_at_once_is_no_larger_than_the_largest_group(family: str, families: Path) -> None:
    checkpoint = open_checkpoint(families / family)
    counter = Counted(checkpoint.tensors)
    tensors = LazyTensors({name: partial(counter.read, name) for name in checkpoint.tensors})
    weights = load_weights(checkpoint.config, tensors, WeightForm(FLOAT32), put=counter.put)
    sizes = [array.nbytes for array in weights]
    assert 0 < counter.most <= max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_that_are_copied_in_pieces_are_the_same(
    dtype: str, implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "PIECE_BYTES", 1)
    random = np.random.default_rng(0)
    parts = [random.standard_normal((rows, 48), np.float32) for rows in (700, 3, 129)]
    form = layers.packed((832, 48), jnp.dtype(dtype), implementation=implementation)
    whole, pieces = (np.zeros(form.shape, form.dtype) for _ in range(2))
    layers.pack(parts, whole, implementation=implementation)
    copying.copy_into(parts, pieces, implementation)
    assert whole.tobytes() == pieces.tobytes()


def test_a_matrix_in_a_file_is_read_in_pieces(tmp_path: Path) -> None:
    stored = np.arange(1 << 22, dtype=np.float32).reshape(4096, 1024)
    save_file({"before": stored[:1], "weight": stored}, tmp_path / "one.safetensors")
    matrix, sizes = open_safetensors(tmp_path / "one.safetensors").loader("weight")(), list[int]()
    assert isinstance(matrix, FileArray)

    def read_piece(begin: int, size: int) -> Array:
        sizes.append(size)
        return np.asarray(matrix.reader(begin, size))

    into = np.zeros(stored.shape, stored.dtype)
    copying.copy_into([replace(matrix, reader=read_piece)], into, "xla")
    np.testing.assert_array_equal(into, stored)
    assert sum(sizes) == stored.nbytes
    assert max(sizes) <= copying.PIECE_BYTES < stored.nbytes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_device_copies_its_share_alone(family: str, families: Path) -> None:
    config, half = open_checkpoint(families / family).config, Shard(1, 2)
    matrices = [
        request for request in abstract_decoder(config, WeightForm(FLOAT32), "xla", half).requests if request.matrix
    ]
    assert len(matrices) > 8
    for request in matrices:
        stored = [np.zeros(shape, np.float32) for shape in request.shapes.values()]
        shares = [np.asarray(share) for share in load._select(request, stored)]
        assert all(any(np.shares_memory(share, each) for each in stored) for share in shares), "no copy of the whole"
        assert 2 * sum(share.size for share in shares) == sum(each.size for each in stored)


def test_rows_in_any_order_are_found() -> None:
    stored = [np.arange(200).reshape(100, 2), 1000 + np.arange(300).reshape(150, 2)]
    for order in (np.arange(90, 130), np.array([249, 3, 4, 0]), np.arange(250)[::-1], np.repeat([7, 240], 40)):
        rows = load._rows(list(stored), order)
        np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(stored)[order])


def test_room_is_given_back_when_reading_fails() -> None:
    room = copying.ByteBudget(10)
    with pytest.raises(ValueError, match="broken"), room.reserve(10):
        raise ValueError("broken")
    with room.reserve(10):
        pass


def test_loading_that_is_left_reads_no_more(families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the load at its first weight, while the only reader thread is at the second."""
    checkpoint, looked_up = open_checkpoint(families / "qwen3"), list[str]()
    first, second, *_ = abstract_decoder(checkpoint.config, WeightForm(FLOAT32), "xla").requests
    called_off = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            called_off.set()
            super().shutdown(wait)

    monkeypatch.setattr(load, "THREADS", 1)
    monkeypatch.setattr(load, "ThreadPoolExecutor", Pool)

    def read(name: str) -> Tensor:
        looked_up.append(name)
        assert name in first.shapes or called_off.wait(PATIENCE)
        return checkpoint.tensors[name]

    def leave(size: int) -> None:
        raise KeyboardInterrupt

    tensors = LazyTensors({name: partial(read, name) for name in checkpoint.tensors})
    with pytest.raises(KeyboardInterrupt):
        load_weights(checkpoint.config, tensors, WeightForm(FLOAT32), leave)
    assert set(looked_up) <= {*first.shapes, *second.shapes}


@pytest.mark.parametrize("shard", [Shard(), Shard(0, 2), Shard(1, 2)])
def test_gates_of_attention_may_be_stored_behind_the_query_of_each_head(shard: Shard, families: Path) -> None:
    checkpoint = open_checkpoint(families / "afmoe")
    names = replace(checkpoint.config.names, gated_queries=True)
    tensors = {name: np.asarray(tensor) for name, tensor in checkpoint.tensors.items()}
    together = dict(tensors)
    for name in (name for name in tensors if name.endswith(".self_attn.gate_proj.weight")):
        query = name.replace("gate_proj", "q_proj")
        heads = (each.reshape(4, 12, -1) for each in (tensors[query], together.pop(name)))
        together[query] = np.concatenate([*heads], axis=1).reshape(96, -1)
    expected = load_weights(checkpoint.config, tensors, WeightForm(FLOAT32), shard=shard)
    weights = load_weights(replace(checkpoint.config, names=names), together, WeightForm(FLOAT32), shard=shard)
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
