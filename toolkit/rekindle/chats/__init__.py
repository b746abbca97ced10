"""Conversations of several turns, and runs of tools."""
