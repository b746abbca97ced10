"""Pure functions from JSON bodies to calls of the session."""
