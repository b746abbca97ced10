"""Print llama.cpp's logits of a GGUF file, or a tokenization. This runs in the peer's environment.

Reads a JSON object from stdin: `file`, and `ids` (token ids) or `text`. Prints the logits of all positions, or the ids.
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np

# Its log would drown the result. The callback is kept here because C holds no reference to it.
_SILENCE = llama_cpp.llama_log_callback(lambda level, text, data: None)


def logits_of(model: ctypes.c_void_p, ids: list[int]) -> list[list[float]]:
    """Return the logits after each token of a prompt."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = max(64, len(ids))
    settings.n_threads = settings.n_threads_batch = 2
    settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
    settings.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for place, token in enumerate(ids):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, True
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    if llama_cpp.llama_decode(context, batch):
        raise RuntimeError("llama_decode failed")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = (llama_cpp.llama_get_logits_ith(context, place) for place in range(len(ids)))
    return [np.ctypeslib.as_array(row, (size,)).tolist() for row in rows]


def main() -> None:
    """Answer the question of stdin."""
    question = json.load(sys.stdin)
    llama_cpp.llama_log_set(_SILENCE, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(question["file"].encode(), settings)
    if not model:
        raise SystemExit("llama.cpp cannot read the file")
    if "ids" in question:
        json.dump({"version": llama_cpp.__version__, "logits": logits_of(model, question["ids"])}, sys.stdout)
        return
    text = question["text"].encode()
    room = (llama_cpp.llama_token * (len(text) + 8))()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), room, len(room), True, True)
    json.dump({"version": llama_cpp.__version__, "ids": list(room[:count])}, sys.stdout)


if __name__ == "__main__":
    main()
