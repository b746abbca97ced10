"""A GGUF file, as llama.cpp writes it."""
