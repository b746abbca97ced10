"""The supported model families, their published sizes, and what fits this machine."""
