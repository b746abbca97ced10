"""Live dashboard of an engine in the output of a cell."""
