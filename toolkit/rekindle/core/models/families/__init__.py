"""Each family in a file of its own: how its `config.json` is read, and the names of its tensors."""
