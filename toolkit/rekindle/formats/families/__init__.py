"""Model families, one per file: readers of `config.json`, and names of tensors."""
