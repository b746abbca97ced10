"""Primitives for waiting across threads and event loops, independent of language models."""
