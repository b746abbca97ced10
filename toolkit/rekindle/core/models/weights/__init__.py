"""Requests of a decoder for its weights, and their forms in memory."""
