"""Scoring of texts without generation: embeddings, likelihoods, classes and rankings."""
