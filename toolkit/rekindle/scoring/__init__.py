"""What a session says of texts without writing any: embeddings, likelihoods, classes and ranks."""
