"""Results of looking inside a model: activations, attention patterns and the logit lens."""
