"""Random stories of sessions that share the stores of one cache directory, with settings that differ.

Each story opens a session, asks it for answers that are known, and closes it. Before some, somebody damages the stores.
An answer is right, or an error of Rekindle says why there is none.
"""

import json
import os
import pickle
import random
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import rekindle
from rekindle.core.errors import NotRestored, StorageError, UnsafeStorage
from rekindle.core.store import entries
from rekindle.settings.engine import SettingsOptions

BASE: SettingsOptions = {
    "num_pages": 9,
    "max_context": 96,
    "max_running": 2,
    "decode_buckets": (2,),
    "max_prefill_tokens": 32,
    "prefill_chunk": 32,
    "prefill_buckets": (32,),
    "precompile": "lazy",
    "disk_cache_bytes": 1 << 20,
}
CHOICES: dict[str, list[Any]] = {
    "page_size": [16, 32],
    "max_logprobs": [0, 2],
    "host_cache_bytes": [0, 1 << 16, 1 << 20],
    "restore": [*["auto"] * 16, *["require"] * 3, "off"],  # which compiles all that it needs
    "precompile": ["lazy", "lazy", "background"],
    "prefix_cache": [True, True, True, False],
    "device": [None, "cpu:0", "cpu:1"],
}
JAX_SETTINGS: dict[str, list[Any]] = {
    "jax_enable_x64": [False, True],
    "jax_debug_nans": [False, True],
    "jax_disable_jit": [False, True],
    "jax_transfer_guard": ["allow", "disallow"],
    "jax_default_matmul_precision": [None, "highest"],
}
PREFIX = [(7 * number) % 500 for number in range(1, 49)]
QUESTIONS: list[dict[str, Any]] = [
    {"token_ids": [*PREFIX, 11]},
    {"token_ids": [*PREFIX, 12, 13]},
    {"token_ids": [*PREFIX[:32], 14]},
    {"token_ids": [5, 6, 7], "temperature": 1.0, "seed": 3, "top_k": 20},
    {"token_ids": [*PREFIX, 15], "temperature": 0.7, "seed": 4},
    {"token_ids": [9] * 60},
]


def ask(session: rekindle.Session, question: dict[str, Any]) -> list[int]:
    """Return the tokens of an answer."""
    return list(session.generate_sync(max_tokens=5, ignore_eos=True, **question).token_ids)


def known_answers(model: Path) -> list[list[int]]:
    """Return the answer of each question, from sessions that restore nothing."""
    answers = []
    for question in QUESTIONS:
        off: SettingsOptions = {"restore": "off", "disk_cache_bytes": 0}
        with rekindle.open_sync(model, progress=False, **(BASE | off)) as session:
            answers.append(ask(session, question))
    return answers


def tell(model: Path, cache: Path, known: list[list[int]], seed: int) -> str:
    """Tell one story, and return how it ended; raise an AssertionError if an answer was wrong."""
    chance = random.Random(seed)
    happened = disaster(cache, chance) if chance.random() < 0.3 else "nothing"
    settings: Any = BASE | {name: chance.choice(values) for name, values in CHOICES.items()}
    own = {name: chance.choice(values) for name, values in JAX_SETTINGS.items()}
    try:
        with set_to(own):
            session = rekindle.open_sync(model, progress=False, **settings)
    except (NotRestored, UnsafeStorage) as error:
        make_private_again(cache)
        return f"{happened}: {type(error).__name__}"
    try:
        with set_to({name: chance.choice(values) for name, values in JAX_SETTINGS.items()}):
            for place in chance.choices(range(len(QUESTIONS)), k=chance.randint(1, 4)):
                answer = ask(session, QUESTIONS[place])
                assert answer == known[place], f"story {seed}: {answer} for {known[place]} after {happened}, {settings}"
            if chance.random() < 0.3:
                try:
                    session.save_sync(progress=False)
                except StorageError:
                    happened = f"{happened}, not saved"
    finally:
        session.close_sync()
    return f"{happened}: answered"


@contextmanager
def set_to(values: dict[str, Any]) -> Iterator[None]:
    """Set JAX up for a block."""
    before = {name: jax.config.values[name] for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, "allow" if name == "jax_transfer_guard" else value)


def disaster(cache: Path, chance: random.Random) -> str:
    """Do something to the stores that a crash, a bad disk, another user or an earlier version could have done."""
    # A walk passes over what another process removes meanwhile.
    entries = (Path(folder) for folder, _, files in os.walk(cache) if "seal.json" in files)
    found = [entry for entry in entries if entry.parent.name != "removed"]
    if not found:
        return "nothing"
    entry = chance.choice(sorted(found))
    kind = chance.choice(["flip", "cut", "remove", "leave", "open to others", "without code"])
    try:
        match kind:
            case "flip" | "cut":
                file = chance.choice(sorted(path for path in entry.rglob("*") if path.is_file()))
                content = bytearray(file.read_bytes())
                if kind == "flip" and content:
                    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                file.write_bytes(content if kind == "flip" else content[: len(content) // 2])
            case "remove":
                shutil.rmtree(entry)
            case "leave":
                shutil.copytree(entry, entry.with_name(f".writing-{chance.randrange(10**6)}"))
            case "open to others":
                entry.chmod(0o777)
            case "without code":
                if entry.parent.name == "programs":
                    remove_code(entry)
    except Exception:  # an earlier disaster damaged it, or another process evicted or damages it meanwhile
        if is_as_written(entry):
            raise
        return f"{kind} too late"
    return kind


def is_as_written(entry: Path) -> bool:
    """Tell whether an entry is there, and undamaged."""
    try:
        entries.verify(entry)
    except (entries.Damaged, rekindle.UnsafeStorage, OSError):
        return False
    return True


def remove_code(entry: Path) -> None:
    """Have an entry hold its program as version 0.1.0 stored what came from JAX's own cache."""
    header, arrays = entries.header_of(entry), entries.arrays_of(entry, ["program", "trees"])
    in_tree, out_tree = pickle.loads(arrays["trees"].tobytes())
    number = int(header["parts"]["topology"].partition("@")[0].removeprefix("cpu:"))
    payload = arrays["program"].tobytes()
    program = deserialize_and_load(payload, in_tree, out_tree, execution_devices=[jax.devices()[number]])
    bad = {"program": np.frombuffer(serialize(program)[0], np.uint8), "trees": arrays["trees"]}
    with entries.new_entry(entry.parent, header, bad) as temporary:
        entries.remove(entry)
        entries.publish(temporary, entry)


def make_private_again(cache: Path) -> None:
    """Take back from others what they could write to."""
    for folder, _, files in os.walk(cache):
        for path in (Path(folder), *(Path(folder, file) for file in files)):
            with suppress(OSError):
                path.chmod(0o700 if path.is_dir() else 0o600)


def main() -> None:
    """Tell some stories, and write how many ended how."""
    model, cache, first, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    jax.config.update("jax_num_cpu_devices", 2)
    os.environ["REKINDLE_CACHE"] = str(cache)
    warnings.simplefilter("ignore", RuntimeWarning)  # what is damaged is told
    known = known_answers(model)
    ends: dict[str, int] = {}
    for seed in range(first, first + count):
        end = tell(model, cache, known, seed)
        ends[end] = ends.get(end, 0) + 1
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    main()
