"""Requests and the validation of their options."""
