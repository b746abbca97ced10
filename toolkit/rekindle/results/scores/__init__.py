"""What comes of a model that judges texts: likelihoods, classes and ranks."""
