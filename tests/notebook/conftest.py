"""Make a tiny model with a tokenizer, and kernels with it open."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.notebook.driver import LAST_SECONDS, Notebook, open_notebook
from tests.notebook.kernels import COLAB, CURRENT, command, environment

SETTINGS = {
    "max_running": 2,
    "num_pages": 1025,
    "max_prefill_tokens": 32,
    "prefill_chunk": 32,
    "prefill_buckets": [32],
    "decode_buckets": [2],
    "decode_steps": 1,
}
"""Settings with few programs, because each costs seconds, and a long context, for requests of up to a minute.

With one step in a tick, each token is a piece of a stream.
"""

PRELUDE = """
import asyncio, json, threading, time
import rekindle

SETTINGS = {settings}
PROMPT, GOLDEN = {prompt}, {golden}
LONG = dict(max_tokens=60000, ignore_eos=True)
EXPECTED = dict(token_ids=PROMPT, max_tokens=len(GOLDEN), ignore_eos=True)

def open_tiny(**settings):
    return rekindle.open({model}, **(SETTINGS | settings))

def when(condition, text):
    "Print text, as part of this cell, as soon as the condition holds."
    def watch():
        while not condition():
            time.sleep(0.005)
        print(text, flush=True)
    threading.Thread(target=watch, daemon=True).start()

def generating():
    "A condition: tokens come, of a request that is submitted after this."
    before = session.stats.scheduler.generated_tokens
    return lambda: session.stats.scheduler.generated_tokens > before + 20
"""


@pytest.fixture(scope="session")
def tiny_model(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of llama-tied's weights with a vocabulary of the words `w3` to `w511`, and a long context."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(families / "llama-tied", directory, copy_function=shutil.copyfile)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 65536}))
    words = ["<pad>", "<s>", "</s>", *(f"w{token}" for token in range(3, 512))]
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def prelude(tiny_model: Path, families: Path) -> str:
    """Return the first cell of every notebook, with the names for later cells."""
    golden = np.load(families / "llama-tied" / "golden.npz")
    prompt, new = golden["greedy_prompt"].tolist(), golden["greedy_new"].tolist()
    return PRELUDE.format(settings=SETTINGS, prompt=prompt, golden=new, model=repr(str(tiny_model)))


@pytest.fixture(
    scope="session",
    params=[CURRENT, pytest.param(COLAB, marks=pytest.mark.older_kernel)],
)
def kernel(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def fresh(kernel: str, prelude: str, tmp_path: Path) -> Iterator[Notebook]:
    """Start a kernel of the test's own. Colab's never ends by itself, as `test_exit` says."""
    variables, patience = environment(tmp_path / "ipython"), 1.0 if kernel == COLAB else LAST_SECONDS
    with open_notebook(tmp_path / "kernel.log", command(kernel), variables, patience) as notebook:
        notebook.run(prelude)
        yield notebook


@pytest.fixture(scope="session")
def notebook(kernel: str, prelude: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """Start a kernel, and open `session` in its first cells; every test leaves it idle."""
    home = tmp_path_factory.mktemp("notebook")
    variables = environment(home / "ipython")
    with open_notebook(home / "kernel.log", command(kernel), variables) as notebook:
        notebook.run(prelude)
        assert notebook.run("session = await open_tiny()") == ""
        yield notebook
        assert notebook.stray_output() == ""
