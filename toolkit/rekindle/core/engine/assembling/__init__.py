"""Everything between a checkpoint and an engine that runs: what fits, which programs, what is found on disk."""
