"""The workload, the same for every contender: prompts of token ids, decoded greedily, with the end token ignored.

- single: one prompt of 128 tokens, 64 new. Time to first token is from the call to the first token's arrival; the
  decode rate is the tokens after the first delivery over the time after it.
- batch: 32 prompts of 16 to 512 tokens (8,912 in all), 64 new each, handed over at once. The rate is all new
  tokens over the whole time, prefill included.
- shared: 16 prompts of 544 tokens with a common prefix of 512, 32 new each, handed over at once. The rate is as of
  the batch; an engine that finds the common prefix computes it once.

Prompts are seeded draws over the model's ordinary tokens, new ones for each round, so the caches of an engine cannot
help; round 0 is the warm-up and has the same shapes.
"""

from random import Random

MODEL = "smollm2-135m-instruct"
VOCABULARY = 49_152
FIRST_ORDINARY = 17  # the ids below are special tokens

NEW_TOKENS = 64
SINGLE_LENGTH = 128
SHARED_REQUESTS, SHARED_PREFIX, SHARED_REST, SHARED_NEW_TOKENS = 16, 512, 32, 32
# fmt: off
BATCH_LENGTHS = (
    331, 83, 342, 495, 61, 260, 215, 231, 395, 277, 396, 494, 82, 404, 316, 30,
    469, 62, 104, 73, 114, 16, 380, 79, 338, 405, 419, 435, 288, 310, 512, 496,
)
# fmt: on


def single_prompt(round_: int) -> list[int]:
    """Return the prompt of one single-stream measurement."""
    return _draw(f"single/{round_}", SINGLE_LENGTH)


def batch_prompts(round_: int) -> list[list[int]]:
    """Return the prompts of one batch measurement."""
    return [_draw(f"batch/{round_}/{row}", length) for row, length in enumerate(BATCH_LENGTHS)]


def shared_prompts(round_: int) -> list[list[int]]:
    """Return the prompts of one measurement with a shared prefix."""
    prefix = _draw(f"shared/{round_}", SHARED_PREFIX)
    return [prefix + _draw(f"shared/{round_}/{row}", SHARED_REST) for row in range(SHARED_REQUESTS)]


def _draw(name: str, length: int) -> list[int]:
    # A string seed is hashed by SHA-512, so it gives the same draws on every machine and Python.
    random = Random(f"rekindle bench {name}")
    return [random.randrange(FIRST_ORDINARY, VOCABULARY) for _ in range(length)]
