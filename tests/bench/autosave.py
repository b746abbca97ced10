"""Measure the cost of saving pages to disk for a busy session: the same requests with and without it, in turns."""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

import rekindle
from rekindle.core.store.directory import cache_dir
from tests.bench.say import say, waiting
from tests.bench.workload import BATCH_LENGTHS, MODEL

NEW = 64


def measure(rounds: int) -> None:
    """Print the ratio of the throughputs of each round on a line, and their median."""
    rng = np.random.default_rng()
    models = cache_dir("models")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "models").symlink_to(models)
        os.environ["REKINDLE_CACHE"] = directory
        with waiting("opening two engines"):
            saving = rekindle.open_sync(MODEL, dtype="float32", progress=False, precompile="all")
            plain = rekindle.open_sync(MODEL, dtype="float32", progress=False, precompile="all", disk_cache_bytes=0)
        ratios = []
        for round_ in range(1 + rounds):
            sessions = [saving, plain] if round_ % 2 else [plain, saving]
            seconds = {}
            for session in sessions:
                prompts = [rng.integers(1000, 40000, length).tolist() for length in BATCH_LENGTHS]
                started = perf_counter()
                session.generate_sync(token_ids=prompts, max_tokens=NEW, ignore_eos=True)
                seconds[session] = perf_counter() - started
            saving.save_sync()  # the remaining pages are written while nobody waits
            if round_:
                ratios.append(seconds[plain] / seconds[saving])
                say(f"round {round_}: {ratios[-1]:.3f}, {saving.stats.scheduler.disk_pages} pages on disk")
        print(f"throughput with autosave / without: {median(ratios):.3f} (asked: at least 0.98)")
        saving.close_sync()
        plain.close_sync()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    measure(parser.parse_args().rounds)
