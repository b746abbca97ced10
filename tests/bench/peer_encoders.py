"""Embed texts by sentence-transformers, or by onnxruntime with its exported graph. This runs in the peer's environment.

fastembed is onnxruntime with a tokenizer and a pooling around it: the row "onnx" has the same graph of the same
weights in float32, the fastest tokenizer, and batches of texts of like length.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.bench.worker_encoders import Encoder, serve_encoder

BATCH = 32


class SentenceTransformers:
    """sentence-transformers with torch, as a `worker_encoders.Encoder`."""

    def __init__(self, model: Path, threads: int) -> None:
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(str(model), device="cpu")

    def about(self) -> dict[str, str]:
        import sentence_transformers

        return {"sentence-transformers": sentence_transformers.__version__, "torch": torch.__version__}

    def embed(self, texts: list[str]) -> Any:
        return self._model.encode(texts, batch_size=BATCH, show_progress_bar=False)


class OnnxRuntime:
    """onnxruntime with the graph of torch's export, as a `worker_encoders.Encoder`."""

    def __init__(self, model: Path, threads: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer
        from transformers import AutoModel

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.enable_truncation(256)
        self._tokenizer.enable_padding()
        module = AutoModel.from_pretrained(model, attn_implementation="eager").eval()
        names = ["input_ids", "attention_mask", "token_type_ids"]
        some = {name: torch.ones(2, 8, dtype=torch.int64) for name in names}
        shape = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=512)}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "model.onnx")
            torch.onnx.export(
                module, (), path, kwargs=some, dynamo=True, dynamic_shapes=dict.fromkeys(names, shape), verbose=False
            )
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def about(self) -> dict[str, str]:
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}

    def embed(self, texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        vectors = np.zeros((len(texts), 0), np.float32)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            found = self._embed([texts[index] for index in part])
            vectors = vectors if vectors.size else np.zeros((len(texts), found.shape[1]), np.float32)
            vectors[part] = found
        return vectors

    def _embed(self, texts: list[str]) -> Any:
        encodings = self._tokenizer.encode_batch(texts)
        ids, mask, types = (
            np.asarray([getattr(each, name) for each in encodings], np.int64)
            for name in ("ids", "attention_mask", "type_ids")
        )
        states = self._session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})[0]
        means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return means / np.linalg.norm(means, axis=1, keepdims=True)


PEERS: dict[str, type[SentenceTransformers] | type[OnnxRuntime]] = {"st": SentenceTransformers, "onnx": OnnxRuntime}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()

    def load() -> Encoder:
        return PEERS[args.peer](args.model, args.threads)

    serve_encoder(load)
