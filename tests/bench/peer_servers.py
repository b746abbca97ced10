"""Set up, start and end the servers of peers."""

import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from tests.bench.machine import cores
from tests.bench.peers import DOWNLOAD, RECIPES, ROOT, Command, call, environment, home, model_file
from tests.bench.say import waiting
from tests.bench.workload import MODEL

ROWS = 32
CONTEXT = 512  # of each request: more than its prompt and its new tokens
CALL_TOKENS = 2048
CACHE_BYTES = 2 << 30
LOADED_S = 600.0
"""How long a server may take to load; vLLM compiles its model."""


class PeerServer:
    """A server of a peer in a process of its own; its context begins once it is ready."""

    def __init__(self, name: str, command: Command, port: int) -> None:
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 closed in close()
        self._process = subprocess.Popen(
            command.argv,
            cwd=ROOT,
            env=os.environ | command.env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that the processes that it starts end with it
        )

    def __enter__(self) -> Self:
        with waiting(f"{self.name}: loading"):
            self._wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _wait_ready(self) -> None:
        limit = time.monotonic() + LOADED_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > limit:
                self._log.seek(0)
                raise SystemExit(f"{self.name} is not ready:\n{self._log.read()[-4000:]}")
            time.sleep(0.5)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):  # nobody listens yet, or it is still loading
            return False


def llamacpp(dtype: str) -> PeerServer:
    """Return llama.cpp's server, built from its source in the package of its binding."""
    tools = _built_llamacpp()
    python = environment("vllm")  # any Python that has pip
    gguf, port = model_file(python), _free_port()
    dense = gguf.with_name(f"smollm2-{dtype}-plain.gguf")
    if not dense.exists():
        kind = {"float32": "F32", "bfloat16": "BF16"}[dtype]
        call([str(tools / "llama-quantize"), "--allow-requantize", str(gguf), str(dense), kind])
    argv = [str(tools / "llama-server"), "--model", str(dense), "--port", str(port), "--parallel", str(ROWS)]
    argv += ["--ctx-size", str(ROWS * CONTEXT), "--batch-size", str(CALL_TOKENS), "--threads", str(cores())]
    return PeerServer("llamacpp", Command(argv, {}), port)


def vllm(dtype: str) -> PeerServer:
    """Return vLLM's server."""
    python, port = environment("vllm"), _free_port()
    # Its command `vllm serve` looks for a package named vllm, which its build for CPUs is not.
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(plain_model())]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    argv += [
        "--served-model-name",
        MODEL,
        "--dtype",
        dtype,
        "--max-num-seqs",
        str(ROWS),
        "--max-model-len",
        str(CONTEXT),
    ]
    argv += ["--max-num-batched-tokens", str(CALL_TOKENS), "--kv-cache-memory-bytes", str(CACHE_BYTES)]
    # By default it leaves one core to its server, which of two is half.
    threads = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}
    variables = {"VLLM_CACHE_ROOT": str(home() / "vllm-compiled"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return PeerServer("vllm", Command(argv, threads | variables | {"PATH": path}), port)


def plain_model() -> Path:
    """Return the directory of the model as safetensors with its tokenizer, made if it is missing."""
    python = environment("vllm")
    with waiting("the model as safetensors"):
        return Path(call([str(python), "-m", "tests.bench.plain_model", str(model_file(python))]).splitlines()[-1])


def _built_llamacpp() -> Path:
    """Build llama.cpp's programs if they are missing, and return their directory."""
    directory = home() / "llamacpp-server"
    programs = directory / "build" / "bin"
    if not (programs / "llama-server").exists() or not (programs / "llama-quantize").exists():
        with waiting("llama.cpp's server: building it from its source (about half an hour on two cores)"):
            python = environment("llamacpp-tools")
            source = _llamacpp_source(python, directory)
            cmake = str(python.with_name("cmake"))
            options = {"CMAKE_BUILD_TYPE": "Release", "CMAKE_MAKE_PROGRAM": str(python.with_name("ninja"))}
            left_out = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL")
            options |= dict.fromkeys((*left_out, "LLAMA_BUILD_APP"), "OFF")
            flags = [f"-D{name}={value}" for name, value in options.items()]
            call([cmake, "-S", str(source), "-B", str(directory / "build"), "-G", "Ninja", *flags])
            call([cmake, "--build", str(directory / "build"), "--target", "llama-server", "llama-quantize"])
    return programs


def _llamacpp_source(python: Path, directory: Path) -> Path:
    package = RECIPES["llamacpp"].groups[0][0]
    call([str(python), *DOWNLOAD, str(directory), "--no-binary", ":all:", package])
    (archive,) = directory.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
