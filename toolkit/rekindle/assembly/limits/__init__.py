"""The settings of `open`, resolved for one model."""
