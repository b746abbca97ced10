"""The contents of the prefix cache, and their picture."""
