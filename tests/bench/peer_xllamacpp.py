"""Time llama.cpp on a GGUF file by the server inside `xllamacpp`. This runs in an environment with that package alone.

Prints the seconds of one decode step after a prompt, and of a prompt of 128 tokens, as JSON: the fastest of a few.
"""

import argparse
import json

import xllamacpp

PROMPT = 200
FIRST = 128
NEW = 48
REPEATS = 3


def timings(server: xllamacpp.Server, first: int, tokens: int, new: int) -> dict[str, float]:
    """Return the server's timings of one request; `first` makes its prompt one of a kind."""
    prompt = [first + 100, *(1000 + place for place in range(tokens - 1))]
    request = {"prompt": prompt, "n_predict": new, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = server.handle_completions(request)
    result: dict[str, float] = (answer if isinstance(answer, dict) else json.loads(answer))["timings"]
    return result


def main() -> None:
    """Print the timings of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_gpu_layers = arguments.file, 1024, 0
    params.warmup, params.n_parallel = True, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.verbosity = -1
    server = xllamacpp.Server(params)
    steps = [timings(server, place, PROMPT, NEW)["predicted_per_token_ms"] / 1e3 for place in range(REPEATS)]
    prompts = [timings(server, place, FIRST, 1)["prompt_ms"] / 1e3 for place in range(REPEATS)]
    print(json.dumps({"step": min(steps), "prompt": min(prompts)}))


if __name__ == "__main__":
    main()
