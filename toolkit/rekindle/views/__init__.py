"""Pictures of what an engine does and of what its cache holds."""
