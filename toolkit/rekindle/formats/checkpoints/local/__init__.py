"""Models that other programs have downloaded: Ollama, LM Studio, and the cache of the Hugging Face hub."""
