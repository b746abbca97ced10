"""Taps: reading and changing what the layers of a model pass on."""
