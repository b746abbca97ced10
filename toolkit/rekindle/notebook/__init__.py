"""Live displays in notebook cells and terminals."""
