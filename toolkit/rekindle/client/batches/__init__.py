"""Batches: several requests in one call, and their progress."""
