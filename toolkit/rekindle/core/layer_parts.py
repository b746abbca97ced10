"""The parts of a decoder's layers where activations are read or changed."""

from typing import Final, Literal, get_args

Part = Literal["residual", "attention", "mlp"]
"""The output of a layer, or the summand of its attention (or of a mixer with a state), or of its MLP."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)
EMBEDDING: Final = -1
"""The layer in place of the embeddings; its residual goes into the first layer."""
NOWHERE: Final = -2
"""The layer of an unused place for an intervention."""
MOST_INTERVENTIONS: Final = 16
"""Room for the interventions of a request."""
EVERYWHERE: Final = 2**30
"""The end of a range of positions that includes all generated tokens."""
