"""The files that a model comes in, and how each is opened."""
