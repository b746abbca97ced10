"""The actors of an engine, one per file; the scheduler has its own package."""
