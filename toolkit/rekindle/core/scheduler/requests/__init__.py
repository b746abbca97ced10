"""Requests in progress: in the waiting queue, or running in a group with a slot and pages."""
