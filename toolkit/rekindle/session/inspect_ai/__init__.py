"""Sessions as models of inspect-ai."""
