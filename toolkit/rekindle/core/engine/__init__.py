"""Actors on one event loop: built, run, paused, on a thread of their own."""
