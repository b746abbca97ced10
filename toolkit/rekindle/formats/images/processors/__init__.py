"""Image processors: the rules of each family for its images."""
