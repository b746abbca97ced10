"""How threads and event loops wait for each other; this package knows nothing of language models."""
