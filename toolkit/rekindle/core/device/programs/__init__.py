"""How the computation is compiled, kept ready, and kept on disk."""
