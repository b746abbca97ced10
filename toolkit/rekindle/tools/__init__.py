"""Functions that a model may call: what they are told to the model as, and how they are called."""
