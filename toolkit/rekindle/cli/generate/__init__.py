"""The command `generate`: its prompt, its request and its report."""
