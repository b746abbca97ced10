"""Inspection of a model: its activations and attention patterns over a sequence."""
