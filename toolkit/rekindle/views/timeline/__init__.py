"""Timelines of requests by tick, and their pictures."""
