"""Thousands of prompts in one call, a window of them at a time, in a file that a restart goes on with."""
