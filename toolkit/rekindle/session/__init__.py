"""Sessions: opening, operations, prefixes, display and metrics."""
