"""The tower of a model with images: from patches of pixels to embeddings."""
