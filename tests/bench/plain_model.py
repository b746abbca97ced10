"""Write the bench's model as plain float32 safetensors, by transformers. This runs in the environment of a peer.

For engines that do not read the GGUF file, or would run its quantized weights.
"""

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_plain(gguf: Path, target: Path) -> None:
    """Write the directory `target`, with the weights of `gguf`, their config and their tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = model.config
    del config.quantization_config  # which it keeps of the file, though its weights are plain
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    unfinished = target.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    plain.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(unfinished)
    unfinished.replace(target)


def kept_plain(gguf: Path) -> Path:
    """Return the directory of the plain model beside its file's; write it if it is missing."""
    plain = gguf.parents[1] / "smollm2-plain"
    if not plain.exists():
        write_plain(gguf, plain)
    return plain


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("target", type=Path, nargs="?", help="printed, beside that of the file, if it is left out")
    args = parser.parse_args()
    if args.target:
        write_plain(args.gguf, args.target)
    else:
        print(kept_plain(args.gguf))
