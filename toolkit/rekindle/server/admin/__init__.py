"""Routes about the server itself, for operators."""
