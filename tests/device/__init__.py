"""Measurements for the quarter of an hour in which a GPU is at hand: `make device`."""
