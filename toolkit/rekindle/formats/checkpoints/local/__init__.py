"""The models of Ollama, LM Studio and the cache of the Hugging Face hub."""
