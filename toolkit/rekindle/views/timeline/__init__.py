"""Timelines of requests, tick by tick, and their pictures."""
