"""Feed-forward layers, dense, with experts, or both."""
