"""Parsed JSON read into calls of a session, in pure functions."""
