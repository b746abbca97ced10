"""Models on the Hugging Face hub, downloaded by name and revision through the hub's library and cache."""
