"""Reader of GGUF files, the format of llama.cpp."""
