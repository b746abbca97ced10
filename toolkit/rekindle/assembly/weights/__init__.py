"""Loading of weights from checkpoint tensors."""
