"""Which prefixes are cached, in which tier: the prefix tree, and what keeps account of it."""
