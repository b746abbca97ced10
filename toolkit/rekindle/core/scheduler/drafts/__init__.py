"""Drafts: guesses of the next tokens of requests, to verify several in one tick."""
