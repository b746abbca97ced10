"""Pure functions from a session's results to the answers of each API."""
