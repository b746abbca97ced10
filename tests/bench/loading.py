"""Measure loading a large checkpoint beside reading its file, and its use of memory.

A checkpoint of random numbers is written first. Then, in turns, one process loads it and another reads its file and
does nothing else, each a process of its own, so that each has a peak of memory of its own. The file is in the system's
cache for both.
"""

import argparse
import json
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, get_args

import jax
import ml_dtypes
import numpy as np

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.filling import load
from rekindle.assembly.weights.keeping import Keeper
from rekindle.core.device.place import Place
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Dtype, Settings
from tests.bench.say import say

HIDDEN, WIDTH, VOCABULARY = 2048, 8192, 32_000
BLOCK = 128
PIECE_BYTES = 1 << 20


def write_checkpoint(directory: Path, gigabytes: float, dtype: str) -> Path:
    """Write a Llama of random numbers with as many layers as come closest to a size; "float8" has scales of blocks."""
    from safetensors.numpy import save_file

    kind = np.dtype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    matrices = np.dtype(ml_dtypes.float8_e4m3fn) if dtype == "float8" else kind
    layer, embedding = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH, VOCABULARY * HIDDEN
    layers = max(1, round((gigabytes * 1e9 - embedding * kind.itemsize) / layer / matrices.itemsize))
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for place in range(layers):
        shapes |= {f"model.layers.{place}.{name}.weight": shape for name, shape in _layer_shapes()}
    random = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    some = {each: random.astype(each) for each in (kind, matrices)}
    quantized = [name for name, shape in shapes.items() if len(shape) == 2 and "layers" in name and matrices != kind]
    tensors = {name: np.resize(some[matrices if name in quantized else kind], shape) for name, shape in shapes.items()}
    for name in quantized:
        scales = tuple(size // BLOCK for size in shapes[name])
        tensors[f"{name}_scale_inv"] = np.resize(np.abs(random), scales)
    save_file(tensors, directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    if quantized:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory / "model.safetensors"


def _layer_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in "qkvo":
        yield f"self_attn.{name}_proj", (HIDDEN, HIDDEN)
    for name in ("gate", "up"):
        yield f"mlp.{name}_proj", (WIDTH, HIDDEN)
    yield "mlp.down_proj", (HIDDEN, WIDTH)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield name, (HIDDEN,)


def load_here(directory: Path, dtype: Dtype) -> dict[str, float]:
    """Load the weights in this process; return the seconds, the weights' bytes, and the memory before and at most."""
    blueprint = Blueprint.of(
        open_checkpoint(directory), Settings(dtype=dtype, restore="off"), Place((jax.devices()[0],))
    )
    before, began = _memory("VmRSS"), perf_counter()
    (weights,) = jax.block_until_ready(load([blueprint], lambda _: None, Keeper(None)))
    seconds = perf_counter() - began
    return {
        "seconds": seconds,
        "weights": sum(array.nbytes for array in weights),
        "before": before,
        "peak": _memory("VmHWM"),
    }


def read_here(directory: Path) -> dict[str, float]:
    """Read the file piece by piece into one buffer, and then into memory for all of it; return the seconds."""
    with (directory / "model.safetensors").open("rb", buffering=0) as file:
        began, buffer = perf_counter(), bytearray(PIECE_BYTES)
        while file.readinto(buffer):
            pass
        middle = perf_counter()
        file.seek(0)
        with memoryview(mmap.mmap(-1, (directory / "model.safetensors").stat().st_size)) as whole:
            place = 0
            while count := file.readinto(whole[place : place + PIECE_BYTES]):
                place += count
    return {"seconds": middle - began, "kept": perf_counter() - middle}


def _memory(name: str) -> int:
    """Return a memory figure of this process, in bytes, as Linux says it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _elsewhere(*arguments: str) -> Any:
    """Run this module in a process of its own, and return its output."""
    done = subprocess.run([sys.executable, "-m", __spec__.name, *arguments], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def measure(directory: Path, gigabytes: float, stored: str, dtype: str, rounds: int) -> None:
    """Write a checkpoint, and print the time of loading it beside reading it."""
    file = write_checkpoint(directory, gigabytes, stored)
    size = file.stat().st_size
    say(f"a checkpoint of {size / 1e9:.2f} GB in {stored}, loaded in {dtype}")
    loads, reads = [], []
    for _ in range(rounds):
        loads.append(_elsewhere("--load", str(directory), "--dtype", dtype))
        reads.append(_elsewhere("--read", str(directory)))
    loading, reading = (median(each["seconds"] for each in done) for done in (loads, reads))
    copying = median(each["kept"] for each in reads)
    weights, peak = loads[0]["weights"], max(each["peak"] for each in loads)
    more = max(each["peak"] - each["before"] for each in loads)
    print(f"{stored} to {dtype}: {size / 1e9:.2f} GB, weights {weights / 1e9:.2f} GB")
    print(f"  loading {1e9 * loading / size:.2f} s/GB, {loading / copying:.1f} times reading it into memory")
    print(f"  reading {1e9 * copying / size:.2f} s/GB into memory, {1e9 * reading / size:.2f} into one small buffer")
    print(
        f"  memory at most {peak / 1e9:.2f} GB; beyond the process before {more / weights:.3f} times the weights",
        flush=True,
    )
    file.unlink()


def main() -> None:
    """Run the bench, or the part of it that a process of its own is for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loading", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ways", default="bfloat16:bfloat16,float32:float32,bfloat16:float32,float8:bfloat16", help="stored:loaded"
    )
    parser.add_argument("--dtype", choices=get_args(Dtype), help=argparse.SUPPRESS)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(load_here(args.load, args.dtype)))
    elif args.read:
        print(json.dumps(read_here(args.read)))
    else:
        for way in args.ways.split(","):
            with tempfile.TemporaryDirectory() as directory:
                stored, dtype = way.split(":")
                measure(Path(directory), args.gigabytes, stored, dtype, args.rounds)


if __name__ == "__main__":
    main()
