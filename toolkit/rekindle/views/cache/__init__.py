"""Snapshots and pictures of the prefix cache."""
