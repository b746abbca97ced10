"""Run llama.cpp by llama-cpp-python's binding of its C interface. This runs in the peer's environment.

The batch is continuous as in llama.cpp's own server: each decode call takes one token of every running request, then
as many prompt tokens of waiting requests as the batch has room for. The common prefix of a batch is computed once and
given to every request, in a context with one cache for all.
"""

import argparse
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np

from tests.bench.worker import Deliver, serve

CALL_TOKENS = 2048
ROWS = 32
CONTEXT = 640  # of each row: the longest prompt and its new tokens
SHARED_CONTEXT = 2048  # of all rows together: a prefix of 512 once, and 16 rows of 64 tokens after it
LEAST_SHARED = 32
FILE_TYPES = {"float32": llama_cpp.LLAMA_FTYPE_ALL_F32, "bfloat16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16}


# Its log would drown the bench's own lines. The callback is kept here because C holds no reference to it.
_SILENCE = llama_cpp.llama_log_callback(lambda level, text, data: None)


@dataclass
class _Row:
    """One request: its prompt, the number of prompt tokens already put in, and its new tokens."""

    prompt: Sequence[int]
    done: int = 0
    new: list[int] = field(default_factory=list)


class LlamaCpp:
    """llama.cpp as a `worker.Contender`."""

    def __init__(self, file: Path, threads: int) -> None:
        llama_cpp.llama_log_set(_SILENCE, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), settings)
        if not self._model:
            raise RuntimeError(f"llama.cpp could not read {file}: remove it, and it is written anew")
        self._apart = _Context(self._model, ROWS * CONTEXT, threads, unified=False)
        self._shared = _Context(self._model, SHARED_CONTEXT, threads, unified=True)

    def about(self) -> dict[str, str]:
        return {"llama-cpp-python": llama_cpp.__version__, "kv": "f16", "n_batch": str(CALL_TOKENS)}

    def stream(self, prompt: list[int], new_tokens: int, deliver: Deliver) -> None:
        self._apart.run([_Row(prompt)], new_tokens, lambda row: deliver(row.new[-1:]))

    def batch(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        rows = [_Row(prompt) for prompt in prompts]
        common = _common(prompts)
        context = self._shared if common else self._apart
        context.run(rows, new_tokens, lambda row: None, common)
        return [row.new for row in rows]

    def step(self, prefill_tokens: int, decode_rows: int, context: int) -> list[float]:
        return []


class _Context:
    """The keys and values of rows, and the calls to compute both.

    Args:
        tokens: the room of all rows together.
        unified: one cache holds all rows, so that they can have tokens in common; else each has one of its own.
    """

    def __init__(self, model: ctypes.c_void_p, tokens: int, threads: int, *, unified: bool) -> None:
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified = tokens, ROWS, unified
        settings.n_batch, settings.n_ubatch = CALL_TOKENS, 512
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp could not make a context of {tokens} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(CALL_TOKENS, 0, 1)

    def run(self, rows: list[_Row], new_tokens: int, on_token: Callable[[_Row], None], common: int = 0) -> None:
        """Decode all rows to their end; the first `common` tokens are the same in all rows."""
        llama_cpp.llama_memory_clear(self._memory, False)
        if common:
            self._share(rows, common)
        while any(len(row.new) < new_tokens for row in rows):
            sampled = self._fill(rows, new_tokens)
            self._decode()
            for entry, row in sampled:
                logits = llama_cpp.llama_get_logits_ith(self._context, entry)
                row.new.append(int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax()))
                on_token(row)

    def _share(self, rows: list[_Row], common: int) -> None:
        self._batch.n_tokens = 0
        for position in range(common):
            self._put(rows[0].prompt[position], position, 0, has_logits=False)
        self._decode()
        for number, row in enumerate(rows):
            row.done = common
            if number:
                llama_cpp.llama_memory_seq_cp(self._memory, 0, number, -1, -1)

    def _decode(self) -> None:
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _fill(self, rows: list[_Row], new_tokens: int) -> list[tuple[int, _Row]]:
        """Put the next call's tokens into the batch; return the entries with logits, and their requests."""
        self._batch.n_tokens = 0
        sampled: list[tuple[int, _Row]] = []
        for number, row in enumerate(rows):
            if row.new and len(row.new) < new_tokens:
                position = len(row.prompt) + len(row.new) - 1
                sampled.append((self._put(row.new[-1], position, number, has_logits=True), row))
        for number, row in enumerate(rows):
            end = min(len(row.prompt), row.done + CALL_TOKENS - self._batch.n_tokens)
            for position in range(row.done, end):
                last = position == len(row.prompt) - 1
                entry = self._put(row.prompt[position], position, number, has_logits=last)
                if last:
                    sampled.append((entry, row))
            row.done = max(row.done, end)
        return sampled

    def _put(self, token: int, position: int, row: int, *, has_logits: bool) -> int:
        entry: int = self._batch.n_tokens
        self._batch.token[entry], self._batch.pos[entry] = token, position
        self._batch.n_seq_id[entry], self._batch.seq_id[entry][0] = 1, row
        self._batch.logits[entry] = has_logits
        self._batch.n_tokens += 1
        return entry


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """Count the tokens of the common prefix of prompts; 0 if it is not worth a call of its own."""
    count = next((place for place, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1), 0)
    return count if count >= LEAST_SHARED else 0


def requantize(source: Path, target: Path, dtype: str) -> None:
    """Write `source` with its weights as `dtype`, by llama.cpp's own quantizer."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = FILE_TYPES[dtype], True
    unfinished = target.with_suffix(".part")
    names = str(source).encode(), str(unfinished).encode()
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(settings)):
        raise RuntimeError(f"llama.cpp could not write {target}")
    unfinished.replace(target)


def _load(gguf: Path, dtype: str, threads: int) -> LlamaCpp:
    if dtype == "packed":
        return LlamaCpp(gguf, threads)
    dense = gguf.with_name(f"smollm2-{dtype}.gguf")
    if not dense.exists():
        requantize(gguf, dense, dtype)
    return LlamaCpp(dense, threads)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--dtype", choices=[*FILE_TYPES, "packed"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    serve(lambda: _load(args.gguf, args.dtype, args.threads))
