"""Waiting between threads and event loops. This package knows nothing of language models."""
