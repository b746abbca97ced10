"""The prefix cache: the cached prefixes in each tier, their tree, and its bookkeeping."""
