"""Models: configs, layers, and decoders built from checkpoint tensors."""
