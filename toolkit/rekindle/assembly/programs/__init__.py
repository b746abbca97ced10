"""The programs of an engine, compiled or restored."""
