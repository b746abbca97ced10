"""How what is computed is compiled, kept ready, and kept on disk."""
