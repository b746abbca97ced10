"""Models: their configs, their layers, and how tensors become a decoder."""
