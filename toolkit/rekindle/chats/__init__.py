"""Conversations of several turns, and answers in parts."""
