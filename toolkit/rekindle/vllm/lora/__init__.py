"""Adapters: their requests, and those in the session."""
