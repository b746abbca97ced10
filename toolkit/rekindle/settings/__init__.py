"""Settings of an engine, the keywords of `open`, and of a server."""
