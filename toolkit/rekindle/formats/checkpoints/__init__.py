"""Readers of model files: GGUF, Hugging Face directories, the hub, and the default model."""
