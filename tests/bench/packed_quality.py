"""Measure the effect of packed weights on the next token: perplexity of prose, and distances from float32 weights.

The README's prose is scored by teacher forcing with each form of the weights of one file.
"""

import argparse
from typing import Final

import jax
import numpy as np

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels.blocks import Array
from tests.bench.packed_steps import forms_of
from tests.bench.prose import prose
from tests.bench.workload import MODEL
from tests.unit.logits import paged_logits

PAGE_SIZE: Final = 64


def log_probabilities(checkpoint: Checkpoint, form: WeightForm, ids: Array) -> tuple[Array, Array]:
    """Return the logits after each token but the last, and their log-softmax, (token, vocabulary) each."""
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, form, "cpu")
    (logits,) = paged_logits(decoder, [ids], PAGE_SIZE)
    return logits[:-1], np.asarray(jax.nn.log_softmax(logits[:-1], axis=-1))


def main() -> None:
    """Print the perplexity of each form, and its distances from float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--model", default=MODEL)
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.model)
    ids, wide = prose(checkpoint, arguments.positions), None
    for name, form in forms_of(checkpoint).items():
        logits, log_p = log_probabilities(checkpoint, form, ids)
        wide = wide or (logits, log_p)
        kl = (np.exp(wide[1]) * (wide[1] - log_p)).sum(-1)
        perplexity = float(np.exp(-log_p[np.arange(len(log_p)), ids[1:]].mean()))
        print(
            f"{name:29} perplexity {perplexity:.3f}, KL mean {kl.mean():.1e}, p99 {np.quantile(kl, 0.99):.1e}, "
            f"{(log_p.argmax(-1) == wide[1].argmax(-1)).mean():.1%} of greedy tokens equal, logits within "
            f"{np.abs(logits - wide[0]).max() / np.abs(wide[0]).max():.1e} of the largest",
            flush=True,
        )


if __name__ == "__main__":
    main()
