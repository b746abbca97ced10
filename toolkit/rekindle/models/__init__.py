"""What a model is: its config, its layers, and how its tensors become a decoder."""
