"""Prompts are read, and submissions prepared as requests."""
