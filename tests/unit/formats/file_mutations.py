"""Mutated files of models, and what a session does with each; in a process of its own, which has a memory limit.

    python -m tests.unit.formats.file_mutations KIND PATH SEED COUNT

A line per mutation says what became of it: "opened", or the name of the error. The process fails at the end if one took
long, or if memory is kept.
"""

import copy
import faulthandler
import json
import random
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rekindle.core.errors import RekindleError
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.incremental import IncrementalDecoder
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.rendering.chat_template import ChatTemplate
from tests.costs import Costs
from tests.gguf_models.files import write_model

MEMORY = 12 << 30
"""Bytes of address space; JAX alone reserves several GB."""
PATIENCE = 20
"""Seconds after which a mutation counts as one without an end, on a busy machine."""
TEXTS = ("hello world 123", "", "x" * 60, "ä😀\n\t </s> <|im_start|>")
PARTS = {
    "normalizer": (
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAD/////"},
        {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "y"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "y"},
        {"type": "Prepend", "prepend": ""},
        {"type": "ByteLevel"},
    ),
    "pre_tokenizer": (
        {"type": "FixedLength", "length": 0},
        {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "MergedWithNext", "invert": True},
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "Metaspace", "replacement": "x", "prepend_scheme": "always", "split": True},
        {"type": "UnicodeScripts"},
        None,
    ),
    "decoder": (
        {"type": "Strip", "content": "h", "start": 9, "stop": 9},
        {"type": "Strip", "content": "\u0120", "start": 0, "stop": 2**40},
        {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "y"},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        None,
    ),
    "post_processor": (
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "BertProcessing", "sep": ["a", 2**31], "cls": ["b", 2**32 - 1]},
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
    ),
}
"""Parts known to the library; it breaks down with some."""
MOST = 40
"""Entries of the largest table that is mutated often: vocabularies and merges are longer."""
NUMBERS = (0, 1, -1, 2, 127, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 1e308, -1e-320)


def write_gguf(families: Path, path: Path) -> Path:
    """Write the file that is mutated: a tiny model with a tokenizer and a chat template."""

    def change(writer: gguf.GGUFWriter) -> None:
        size = json.loads((families / "llama-tied" / "config.json").read_text())["vocab_size"]
        tokens = ["<s>", "</s>", *map(chr, range(97, 123)), "ab", "abc", *(f"<|{i}|>" for i in range(size))][:size]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token.startswith("<") else 1 for token in tokens])
        writer.add_token_merges(["a b", "ab c"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")

    return write_model(families / "llama-tied", path, change)


def mutated_bytes(data: bytes, seed: int, header: int) -> bytes:
    """Return a file with a few bytes changed, most of them in its header, or cut, or with bytes more or less."""
    chance = random.Random(seed)
    content = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(min(header, len(content)) if chance.random() < 0.9 else len(content))
        kind = chance.randrange(6)
        if kind == 0:
            content[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[place] = chance.choice((0, 1, 7, 127, 128, 255))
        elif kind == 2:
            size = chance.choice((4, 8))
            number = chance.choice([each for each in NUMBERS if isinstance(each, int) and 0 <= each < 256**size])
            content[place : place + size] = number.to_bytes(size, "little")
        elif kind == 3:
            del content[place : place + chance.randint(1, 64)]
        elif kind == 4:
            other = chance.randrange(min(header, len(content)))
            content[place:place] = content[other : other + chance.randint(1, 64)]
        else:
            content[chance.randrange(8, len(content)) :] = b""
        if len(content) < 16:
            break
    return bytes(content)


def mutated_json(content: Any, seed: int) -> Any:
    """Return a JSON value with a few of its parts replaced, removed, or exchanged."""
    chance, value = random.Random(seed), copy.deepcopy(content)
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            name = chance.choice(list(PARTS))
            parts = chance.choices(PARTS[name], k=chance.randint(1, 2))
            of_several = {"type": "Sequence", f"{name}s": parts, "processors": parts, "pretokenizers": parts}
            value[name] = parts[0] if len(parts) == 1 or None in parts else of_several
            continue
        places = list(_places(value, whole=chance.random() < 0.2))
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1:
            other_holder, other_key = chance.choice(places)
            holder[key] = copy.deepcopy(other_holder[other_key])
        elif kind == 2 and isinstance(holder, list):
            del holder[key]
        else:
            holder[key] = _other(holder[key], chance)
    return value


def _places(value: Any, whole: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the object and the key of each part; without `whole`, those of large tables are left out."""
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(each, dict | list) and (whole or len(each) < MOST):
            yield from _places(each, whole)


def _other(value: Any, chance: random.Random) -> Any:
    texts = (
        "",
        "\0",
        "(x+x+)+y",
        "(",
        "é" * 50,
        "AAAA",
        "BPE",
        "Unigram",
        "WordPiece",
        "Precompiled",
        "Strip",
        "[0-9]{1,99999}",
    )
    choices: list[Any] = [
        *NUMBERS,
        *texts,
        None,
        True,
        False,
        [],
        {},
        [value],
        {"a": value},
        {"String": "x"},
        {"Regex": "(x+x+)+y"},
    ]
    if isinstance(value, str) and value:
        choices += [value[:-1], value * 2, value[::-1]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        choices += [value + 1, -value, value * 1000]
    return chance.choice(choices)


def use(path: Path) -> None:
    """Open a model, read its tensors, and use its tokenizer as requests do."""
    checkpoint = open_checkpoint(path)
    for name in checkpoint.tensors:
        np.asarray(checkpoint.tensors[name])
    if checkpoint.tokenizer is not None:
        use_tokenizer(checkpoint.tokenizer, checkpoint.config.vocab_size, checkpoint.eos_ids)


def use_tokenizer(tokenizer: Tokenizer, size: int, ends: frozenset[int]) -> None:
    """Encode, decode, render and constrain; errors of one text leave the others."""

    def each(work: Callable[[], Any]) -> None:
        with suppress(RekindleError):
            work()

    for text in TEXTS:
        each(lambda text=text: tokenizer.decode(tokenizer.encode(text)))  # type: ignore[misc]
        each(lambda text=text: tokenizer.count(text))  # type: ignore[misc]
    decoder = IncrementalDecoder(tokenizer)
    for token in (*range(min(size, 40)), size - 1, size, 2**31):
        each(lambda token=token: decoder.push(token))  # type: ignore[misc]
    each(decoder.finish)
    each(lambda: Compiler(tokenizer, size, ends)._tokens)
    if tokenizer.chat_template is not None:
        template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
        each(lambda: tokenizer.encode_chat(template.render([{"role": "user", "content": "hi"}])))


def outcome(path: Path) -> str:
    """Return the outcome of a mutation; errors other than Rekindle's are raised."""
    try:
        use(path)
    except RekindleError as error:
        return type(error).__name__
    return "opened"


def mutations(kind: str, source: Path, first: int, count: int) -> Iterator[tuple[int, str]]:
    """Yield the seed and the outcome of each mutation.

    Args:
        kind: "gguf", for a file; or "tokenizer", for a directory with a tokenizer.json, which is replaced.
        source: the file or the directory.
        first: the first seed.
        count: the number of mutations.
    """
    target = source if kind == "tokenizer" else source.with_suffix(".mutated.gguf")
    data = (source / "tokenizer.json" if kind == "tokenizer" else source).read_bytes()
    header = data.find(b"token_embd.weight") + 2000 if kind == "gguf" else 0
    try:
        for seed in range(first, first + count):
            if kind == "gguf":
                target.write_bytes(mutated_bytes(data, seed, min(header, len(data))))
            elif seed % 8 == 0:
                (source / "tokenizer.json").write_bytes(mutated_bytes(data, seed, len(data)))
            else:
                (source / "tokenizer.json").write_text(json.dumps(mutated_json(json.loads(data), seed)))
            yield seed, outcome(target)
    finally:
        if kind == "tokenizer":
            (source / "tokenizer.json").write_bytes(data)


def main(kind: str, path: str, first: str, count: str) -> None:
    """Print a line for each mutation; "RAW" begins that of an error that is not one of Rekindle's."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    costs = Costs(warm_up=int(count) // 10)
    for seed in range(int(first), int(first) + int(count)):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            with costs.of(seed):
                ((_, words),) = mutations(kind, Path(path), seed, 1)
        except BaseException as error:
            words = f"RAW {type(error).__module__}.{type(error).__name__}: {str(error)[:200]!r}"
            traceback.print_exc()
        sys.stdout.write(f"{seed} {words}\n")
        sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()
    costs.check()


if __name__ == "__main__":
    main(*sys.argv[1:])
