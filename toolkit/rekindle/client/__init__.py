"""Prompts and options of calls, their requests, and the handles and records of those requests."""
