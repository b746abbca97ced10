"""Parts of the formats: codes, scales, and the stored tensors."""
