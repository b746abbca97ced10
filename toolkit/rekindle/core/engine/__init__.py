"""The engine: actors on one event loop, from loading to serving, on a dedicated thread."""
