"""Supported GGUF architectures, and their settings."""
