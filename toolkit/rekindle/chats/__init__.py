"""Conversations of several turns, with functions for the model to call."""
