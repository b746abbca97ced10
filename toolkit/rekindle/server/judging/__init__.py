"""Rankings, scores, classes, embeddings and tokens: work without generated text."""
