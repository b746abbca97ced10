"""Which prefixes are cached, in which tier: the prefix cache, its tree, and what keeps account of it."""
