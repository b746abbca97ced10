"""Looks at the activations of a request, and their changes."""
