"""The dashboard: what an engine does, as it does it, in the output of a cell."""
