"""Compare saved models with llama.cpp: `python -m tests.bench.saved [FILE-OR-DIRECTORY ...]`; the default model alone.

Each model is saved as GGUF with 4 and 8 bits. A session over the file has the logits of the session that saved it, bit
for bit. llama.cpp multiplies with inputs of 8 bits, so its logits differ: at most as much as it differs between the
file and the same numbers in float32. Against those numbers, `activations="exact"` differs by rounding alone. The
environment of llama.cpp is the one of the bench, or that of $LLAMA_CPP_PYTHON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import rekindle
from tests.bench import peers

PROMPT = "The capital of France is Paris, which lies on the Seine. The capital of Italy is"
CHAT = "<|im_start|>user\nName 3 colors, it's 12345!<|im_end|>\n<|im_start|>assistant\n"
NEW = 16
SETTINGS: dict[str, Any] = {"progress": False, "precompile": "lazy", "num_pages": 64, "restore": "off"}
Array = np.ndarray[Any, np.dtype[np.float64]]


@cache
def python() -> str:
    """Return the Python of llama.cpp's environment."""
    return os.environ.get("LLAMA_CPP_PYTHON") or str(peers.environment("llamacpp"))


def ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return llama.cpp's answer to a question of `peer_logits`."""
    command = [python(), "-m", "tests.bench.peer_logits"]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, cwd=peers.ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(f"llama.cpp failed: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def widened(path: Path, into: Path) -> Path:
    """Copy a file with its numbers in float32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(into, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture", "rekindle.")):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def logprobs(session: rekindle.Session, ids: Sequence[int], new: int = 1) -> rekindle.Generation:
    """Return an answer with the log-probabilities of the most likely tokens."""
    return session.generate_sync(token_ids=list(ids), max_tokens=new, temperature=0, ignore_eos=True, logprobs=20)


def first_of(generation: rekindle.Generation, theirs: Array) -> float:
    """Return the largest difference of the first token's log-probabilities from those of logits."""
    assert generation.logprobs is not None, "log-probabilities were asked for"
    normal = theirs - np.logaddexp.reduce(theirs)
    return max(abs(each.logprob - float(normal[each.token_id])) for each in generation.logprobs[0].top)


def greedy(file: Path, ids: Sequence[int], answer: Sequence[int]) -> tuple[int, Array]:
    """Return the number of an answer's tokens that llama.cpp prefers too, and the logits after the prompt."""
    result = np.array(ask({"file": str(file), "ids": [*ids, *answer]})["logits"])
    preferred = result[len(ids) - 1 : -1].argmax(-1)
    return int((preferred == np.array(answer)).sum()), result[len(ids) - 1]


def compare(model: str, bits: int, folder: Path) -> None:
    """Save a model, open the file here and in llama.cpp, and print the differences."""
    quantize: Any = f"int{bits}"
    path = folder / f"{Path(model).stem}-{bits}.gguf"
    with rekindle.open_sync(model, quantize=quantize, weights="dequantized", **SETTINGS) as session:
        tokenizer = session.tokenizer
        ids = tokenizer.encode(PROMPT) if tokenizer is not None else list(range(3, 40))
        expected = logprobs(session, ids, NEW)
        session.save_quantized_sync(path, progress=False)
    with rekindle.open_sync(path, **SETTINGS) as session:
        is_same = logprobs(session, ids, NEW).logprobs == expected.logprobs
    same, theirs = greedy(path, ids, expected.token_ids)
    wide = widened(path, folder / "wide.gguf")
    same_exact, exact = greedy(wide, ids, expected.token_ids)
    with rekindle.open_sync(path, activations="exact", **SETTINGS) as session:
        rounding = first_of(logprobs(session, ids), exact)
    spread = np.abs((theirs - np.logaddexp.reduce(theirs)) - (exact - np.logaddexp.reduce(exact)))[
        [each.token_id for each in (expected.logprobs or ())[0].top]
    ].max()
    tokens = "no tokenizer"
    if tokenizer is not None:
        tokens = f"tokens equal: {ask({'file': str(path), 'text': CHAT})['ids'] == tokenizer.encode(CHAT)}"
    print(
        f"{Path(model).name}, {bits} bits: session equal to the bit: {is_same}; llama.cpp prefers {same} of {NEW} "
        f"tokens, and {same_exact} with the numbers in float32; log-probabilities differ by "
        f"{first_of(expected, theirs):.2g} of its own {spread:.2g}, and without rounded inputs by {rounding:.1g}; "
        f"{tokens}",
        flush=True,
    )


def main() -> None:
    """Compare the models of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        for model in sys.argv[1:] or ["smollm2-135m-instruct"]:
            for bits in (4, 8):
                compare(model, bits, Path(folder))


if __name__ == "__main__":
    main()
