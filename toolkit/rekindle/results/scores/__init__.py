"""Results of scoring: likelihoods, classes and rankings of texts."""
